"""Loading of text for tasks, and the options that layers take from the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.text import corpora
from vocabench.harness.tasks.shared.data import Progress
from vocabench.impls.structures import bigrams


def load(name: str, vocab: int | None, settings: Mapping[str, Any], progress: Progress) -> corpora.Corpus:
    """Load the corpus. No setting changes its vocabulary."""
    return corpora.load(name, vocab=vocab, progress=progress)


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
