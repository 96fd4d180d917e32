"""What tasks over text share: how they load it, and what it gives to a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.text import corpora
from vocabench.harness.tasks.shared.data import Progress
from vocabench.impls.structures import bigrams


def load(name: str, vocab: int | None, settings: Mapping[str, Any], progress: Progress) -> corpora.Corpus:
    """The corpus, whose vocabulary no setting changes."""
    return corpora.load(name, vocab=vocab, progress=progress)


def with_words(options: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A method that reads the spelling of words gets the corpus's, unless the cell has some. They are no option of the
    cell: its text is part of it already."""
    spelled = {"words": words} if "words" in options and options["words"] is None else {}
    return {**options, **spelled}


def with_pairs(options: Mapping[str, Any], ids_T: NDArray[np.integer], vocab: int) -> dict[str, Any]:
    """A layer that reads which words follow each other gets the pairs of the training text, unless the cell has some;
    as little an option of the cell as its words are."""
    asked = any(value == bigrams.NAME for value in options.values() if isinstance(value, str))
    missing = asked and options["pairs"] is None
    return {**options, "pairs": bigrams.count_pairs(ids_T, vocab)} if missing else dict(options)
