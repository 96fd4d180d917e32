"""What tasks over a text share: the text of their cell, and what it gives to a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.cells import Cell
from harness.datasets import _corpus
from impls.errors import BadInput


def corpus_of(cell: Cell, progress: Callable[[str], None]) -> tuple[_corpus.Corpus, dict[str, Any]]:
    """The cell's text, and its provenance for the row.

    Raises:
        BadInput: It is not the text that the run began with.
    """
    corpus = _corpus.load(cell.dataset, vocab=cell.vocab, progress=progress)
    if corpus.sha256 != cell.dataset_sha256:
        raise BadInput(
            f"dataset {cell.dataset!r} has sha256 {corpus.sha256[:12]}..., the run began with "
            f"{cell.dataset_sha256[:12]}...: allowed: the same text throughout a run"
        )
    data = {"dataset": corpus.name, "sha256": corpus.sha256, "licence": corpus.licence, "versions": corpus.versions}
    return corpus, data


def with_words(options: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A method that reads the spelling of words gets the corpus's, unless the cell has some. They are no option of the
    cell: its text is part of it already."""
    spelled = {"words": words} if "words" in options and options["words"] is None else {}
    return {**options, **spelled}
