"""Weights that update the statistics q(w, c), from which SOHSM re-organizes itself (Shen et al. 2017, equation 9).

q(w, c) is a moving average of log2 P(c | h) over the occurrences of w as the target. The (V, C) array is stored on the
device. This module computes, for all frameworks, which rows a batch changes and by which weights:

    q[words] = keep * q[words] + share * (sum over the word's tokens of log2 P(c | h))
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SMOOTHINGS = ("running", "ema", "printed")


@dataclass(frozen=True)
class BatchWeights:
    """Weights of one batch. All arrays have N entries, so that their shape does not depend on the batch.

    Attributes:
        words: Distinct targets (N,), followed by V (no word) in unused entries.
        segment: Index (N,) into `words` of the target of each token.
        keep: Weight (N,) of the old value of each word.
        share: Weight (N,) of each token of the word.
    """

    words: NDArray[np.int32]
    segment: NDArray[np.int32]
    keep: NDArray[np.float32]
    share: NDArray[np.float32]


class StatisticsWeights:
    """Counter of the occurrences of each word as a target, which weights new samples against old ones.

    Let f be the count of a word in the training text. A new sample has the weight

        ema       1/f: a memory of about one epoch, as equation 8 requires
        printed   1 - 1/f: equation 9 as printed, where a frequent word keeps almost only its last sample
        running   1/n for the n-th sample while that is more than 1/f (the mean so far), then as `ema`

    Several samples of a word in one batch count as that many samples with their mean value.

    Attributes:
        seen_V: (V,) number of samples of each word so far.
    """

    def __init__(self, counts_V: NDArray[np.int64], smoothing: str) -> None:
        self._frequency_V = np.maximum(counts_V, 1).astype(np.float64)
        self.seen_V = np.zeros(len(counts_V), dtype=np.int64)
        self._smoothing = smoothing

    def batch(self, targets_N: NDArray[np.integer]) -> BatchWeights:
        """Return the weights for one batch of targets. Targets outside the vocabulary (padding) change nothing."""
        vocab, tokens = len(self.seen_V), len(targets_N)
        known = np.where((targets_N >= 0) & (targets_N < vocab), targets_N, vocab)
        unique, segment_N, times = np.unique(known, return_inverse=True, return_counts=True)
        real = unique < vocab
        words, new = unique[real], times[real]

        keep = self._keep(words, new)
        self.seen_V[words] += new
        weights = BatchWeights(
            words=np.full(tokens, vocab, dtype=np.int32),
            segment=segment_N.astype(np.int32),
            keep=np.ones(tokens, dtype=np.float32),
            share=np.zeros(tokens, dtype=np.float32),
        )
        weights.words[: len(words)] = words
        weights.keep[: len(words)] = keep
        weights.share[: len(words)] = (1 - keep) / new
        return weights

    def _keep(self, words: NDArray[np.int64], new: NDArray[np.int64]) -> NDArray[np.float64]:
        frequency = self._frequency_V[words]
        if self._smoothing == "printed":
            return (1 / frequency) ** new
        moving = (1 - 1 / frequency) ** new
        if self._smoothing == "ema":
            return moving
        seen = self.seen_V[words]
        return np.minimum(seen / (seen + new), moving)


def statistics_dtype(vocab: int, clusters: int) -> np.dtype:
    """Return float32 while q(w, c) stays below 1 GiB, else float16 (2 GB instead of 4 for a million words)."""
    return np.dtype(np.float32 if vocab * clusters * 4 < 2**30 else np.float16)
