"""What `vocabench data` shows and does."""

from __future__ import annotations

from dataclasses import dataclass

from harness import registry
from harness.datasets import _corpus, _files, _pairs
from harness.datasets._files import Progress
from impls.errors import BadInput


@dataclass(frozen=True)
class Entry:
    """A dataset as it is listed: `kind` is "text" or "pairs"; `is_here` tells whether it needs neither building nor a
    network."""

    name: str
    kind: str
    description: str
    licence: str
    source: str
    is_here: bool


def describe() -> list[Entry]:
    """Every dataset there is. This builds and downloads nothing."""
    return [_entry(name) for name in registry.datasets()]


def _entry(name: str) -> Entry:
    module = registry.dataset(name)
    return Entry(name, module.KIND, module.DESCRIPTION, module.LICENCE, module.SOURCE, module.is_here())


def get(name: str, progress: Progress) -> str:
    """Download or build a dataset, unless it is here, and say what is in it, in one line."""
    if registry.dataset(name).KIND == "pairs":
        pairs = _pairs.load(name, progress=progress)
        counts = ", ".join(f"{split} {len(each):,}" for split, each in pairs.splits.items())
        return f"{name}: pairs: {counts}; sha256 {pairs.sha256}"
    corpus = _corpus.load(name, progress=progress)
    tokens = ", ".join(f"{split} {len(ids):,}" for split, ids in corpus.splits.items())
    return f"{name}: {len(corpus.words):,} words; tokens: {tokens}; sha256 {corpus.sha256}"


def verify(name: str, progress: Progress) -> str:
    """The sha256 of a dataset's text, once its files have been held against every checksum that is known.

    Raises:
        BadInput: It is not here, is damaged, or is not the file that was published.
    """
    if not registry.dataset(name).is_here():
        raise BadInput(f"dataset {name!r} is not here, or is damaged: allowed: 'vocabench data get {name}' first")
    if registry.dataset(name).KIND == "pairs":
        return _pairs.load(name, progress=progress).sha256
    return _files.sha256_of(_corpus.find(name, progress).files)
