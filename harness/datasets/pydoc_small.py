"""pydoc-small: the docstrings of the standard library alone, for quick runs and tests."""

from harness.datasets import _pydoc
from harness.datasets._corpus import Text
from harness.datasets._files import Progress

DESCRIPTION = "docstrings of the standard library"
SOURCE = "built here, without a network"
LICENCE = "PSF License"
PACKAGES = ("python",)


def text(progress: Progress) -> Text:
    return _pydoc.text("pydoc-small", PACKAGES, progress)


def is_here() -> bool:
    return _pydoc.is_here("pydoc-small", PACKAGES)
