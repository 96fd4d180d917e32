"""Loading of text for tasks, and the options that layers take from the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.text import corpora
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.settings import Setting
from vocabench.harness.tasks.shared import data
from vocabench.harness.tasks.shared.data import Progress
from vocabench.impls.options import Choice, Number
from vocabench.impls.structures import bigrams

SETTINGS: dict[str, Setting] = {
    "text_rule": Choice(corpora.OWN_RULE, corpora.RULES, "tokenization; that of the dataset by default"),
    "min_count": Number(0, 0, 10**9, "fewest occurrences of a word in the vocabulary; 0 for the rule of the dataset"),
}


def load(name: str, vocab: int | None, settings: Mapping[str, Any], progress: Progress) -> corpora.Corpus:
    """Load the corpus with `SETTINGS`, whose `min_count` takes precedence over a number of words."""
    min_count = settings["min_count"] or None
    return corpora.load(
        name,
        vocab=None if min_count else vocab,
        min_count=min_count,
        rule=settings["text_rule"],
        progress=progress,
    )


def data_of(cell: Cell, progress: Progress) -> tuple[corpora.Corpus, dict[str, Any]]:
    """Load the corpus of the cell, with its provenance for the row, to which the tokenization rule belongs."""
    corpus, provenance = data.data_of(cell, load, progress)
    return corpus, {**provenance, "text_rule": corpus.rule}


def with_words(options: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Add the words of the corpus for a method that reads spellings, unless the cell provides them.

    They are not an option of the cell, because the text is already part of the cell.
    """
    spelled = {"words": words} if "words" in options and options["words"] is None else {}
    return {**options, **spelled}


def with_pairs(options: Mapping[str, Any], ids_T: NDArray[np.integer], vocab: int) -> dict[str, Any]:
    """Add the bigrams of the training text for a layer that needs them, unless the cell provides them.

    They are not an option of the cell, because the text is already part of the cell.
    """
    asked = any(value == bigrams.NAME for value in options.values() if isinstance(value, str))
    missing = asked and options["pairs"] is None
    return {**options, "pairs": bigrams.count_pairs(ids_T, vocab)} if missing else dict(options)
