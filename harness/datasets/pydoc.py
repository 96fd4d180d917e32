"""pydoc: about two million words of technical English, built from the docstrings of the packages installed anyway."""

from harness.datasets import _pydoc
from harness.datasets._corpus import Text
from harness.datasets._files import Progress

DESCRIPTION = "docstrings of the standard library and the numerical packages installed here"
SOURCE = "built here, without a network"
LICENCE = "the licence of each package"
PACKAGES = ("python", "numpy", "scipy", "pandas", "torch", "jax", "keras")


def text(progress: Progress) -> Text:
    return _pydoc.text("pydoc", PACKAGES, progress)


def is_here() -> bool:
    return _pydoc.is_here("pydoc", PACKAGES)
