"""What `vocabench data` shows and does."""

from __future__ import annotations

from dataclasses import dataclass

from harness import registry
from harness.datasets import _corpus, _files
from harness.datasets._files import Progress
from harness.datasets._source import Text
from impls.errors import BadInput


@dataclass(frozen=True)
class Entry:
    """A dataset as it is listed; `is_here` tells whether it needs neither building nor a network."""

    name: str
    description: str
    licence: str
    source: str
    is_here: bool


def describe() -> list[Entry]:
    """Every dataset there is. This builds and downloads nothing."""
    return [_entry(name) for name in registry.datasets()]


def _entry(name: str) -> Entry:
    module = registry.dataset(name)
    return Entry(name, module.DESCRIPTION, module.LICENCE, module.SOURCE, module.is_here())


def get(name: str, progress: Progress) -> Text:
    """Download or build a dataset, unless it is here."""
    return registry.dataset(name).text(progress)


def verify(name: str, progress: Progress) -> str:
    """The sha256 of a dataset's text, once its files have been held against every checksum that is known.

    Raises:
        BadInput: It is not here, is damaged, or is not the file that was published.
    """
    if not registry.dataset(name).is_here():
        raise BadInput(f"dataset {name!r} is not here, or is damaged: allowed: 'vocabench data get {name}' first")
    return _files.sha256_of(_corpus.find(name, progress).files)
