"""What tasks over running text share: how they load it, and what it gives to a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.datasets import _corpus
from harness.tasks._data import Progress


def load(name: str, vocab: int | None, settings: Mapping[str, Any], progress: Progress) -> _corpus.Corpus:
    """The corpus, whose vocabulary no setting changes."""
    return _corpus.load(name, vocab=vocab, progress=progress)


def with_words(options: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A method that reads the spelling of words gets the corpus's, unless the cell has some. They are no option of the
    cell: its text is part of it already."""
    spelled = {"words": words} if "words" in options and options["words"] is None else {}
    return {**options, **spelled}
