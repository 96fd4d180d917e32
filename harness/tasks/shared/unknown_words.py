"""Scores of language models without words outside of the vocabulary, all of which are <unk> and so easy to guess."""

from __future__ import annotations

from collections.abc import Iterable
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


def known_perplexity(corpus: Corpus, split: str, scored: Iterable[tuple[NDArray, NDArray]]) -> list[Measurement]:
    """Return the perplexity over the targets that are words of the vocabulary, if some are and others are not.

    Args:
        corpus: The text, whose vocabulary has <unk>.
        split: The split that is scored.
        scored: Batches of targets with the negative log-likelihood of each in nats, (N,).
    """
    unknown = corpus.words.index(UNK)
    if not (corpus.splits[split] == unknown).any():
        return []
    total, known = 0.0, 0
    for targets_N, nll_N in scored:
        is_known_N = targets_N != unknown
        total += float(nll_N[is_known_N].sum(dtype=np.float64))
        known += int(is_known_N.sum())
    return [Measurement("known_perplexity", float(np.exp(total / known)), detail={"split": split})] if known else []
