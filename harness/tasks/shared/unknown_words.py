"""Scores of language models without words outside of the vocabulary, all of which are <unk> and so easy to guess."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.text.corpora import Corpus
from vocabench.harness.datasets.text.tokenization import UNK
from vocabench.harness.run.rows import Measurement


def shares(corpus: Corpus, split: str) -> dict[str, Any]:
    """Return the shares of words of a split that are <unk>, and that do not occur in the training split.

    For text with lines, this includes the share of lines that were trained on.
    """
    ids_T = corpus.splits[split]
    shared = corpus.shared_with_training
    return {
        **({"shared_with_training": shared[split]} if split in shared else {}),
        "unknown_targets": float((ids_T[1:] == corpus.words.index(UNK)).mean()),
        "unseen_targets": corpus.unseen.get(split, 0) / len(ids_T),
    }


def known_perplexity(corpus: Corpus, split: str, targets: NDArray, nll: NDArray) -> list[Measurement]:
    """Return the perplexity over the targets that are words of the vocabulary, if some are and others are not.

    Args:
        corpus: The text, whose vocabulary has <unk>.
        split: The split that is scored.
        targets: Its targets, an array of any shape.
        nll: The negative log-likelihood of each in nats, an array of the same shape.
    """
    is_known = targets != corpus.words.index(UNK)
    if is_known.all() or not is_known.any():
        return []
    value = float(np.exp(nll[is_known].mean(dtype=np.float64)))
    return [Measurement("known_perplexity", value, detail={"split": split})]
