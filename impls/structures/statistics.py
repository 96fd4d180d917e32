"""The statistics q(w, c) that re-organize SOHSM (Shen et al. 2017, equation 9), as weights for one batch.

q(w, c) is a moving average of log2 P(c | h) over the times that w was the target. The (V, C) array lives on the device;
what changes with the batch is only which rows move and how far, and that is worked out here once for all frameworks:

    q[words] = keep * q[words] + share * (sum over the word's tokens of log2 P(c | h))
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SMOOTHINGS = ("running", "ema", "printed")


@dataclass(frozen=True)
class BatchWeights:
    """How one batch moves the statistics. All arrays have N entries, so that their shape does not depend on the batch.

    Attributes:
        words: (N,) the distinct targets; V (no word) in the entries that are left over.
        segment: (N,) for each token the entry of `words` that is its target.
        keep: (N,) weight of the old value.
        share: (N,) weight of each of the word's tokens.
    """

    words: NDArray[np.int32]
    segment: NDArray[np.int32]
    keep: NDArray[np.float32]
    share: NDArray[np.float32]


class StatisticsWeights:
    """Counts how often each word has been a target, and weighs new samples against old ones.

    With f the word's count in the training text, a new sample gets the weight

        ema       1/f: a memory of about one epoch, which is what equation 8 asks for
        printed   1 - 1/f, equation 9 to the letter: a frequent word keeps its last sample alone
        running   1/n for the n-th sample while that is more than 1/f: the mean so far, then `ema`

    Several samples of a word in one batch are taken as that many samples with their mean.
    """

    def __init__(self, counts_V: NDArray[np.int64], smoothing: str) -> None:
        self._frequency_V = np.maximum(counts_V, 1).astype(np.float64)
        self._seen_V = np.zeros(len(counts_V), dtype=np.int64)
        self._smoothing = smoothing

    def batch(self, targets_N: NDArray[np.integer]) -> BatchWeights:
        """The weights for one batch of targets; a target outside the vocabulary (padding) moves nothing."""
        vocab, tokens = len(self._seen_V), len(targets_N)
        known = np.where((targets_N >= 0) & (targets_N < vocab), targets_N, vocab)
        unique, segment_N, times = np.unique(known, return_inverse=True, return_counts=True)
        real = unique < vocab
        words, new = unique[real], times[real]

        keep = self._keep(words, new)
        self._seen_V[words] += new
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
        seen = self._seen_V[words]
        return np.minimum(seen / (seen + new), moving)


def statistics_dtype(vocab: int, clusters: int) -> np.dtype:
    """float32 while q(w, c) stays below 1 GiB, else half precision (at a million words 2 GB in place of 4)."""
    return np.dtype(np.float32 if vocab * clusters * 4 < 2**30 else np.float16)
