"""Inputs on which layers are checked and timed, drawn from a seed so that all frameworks get the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def zipf_counts(vocab: int) -> NDArray[np.int64]:
    """Return (V,) word counts like those of natural text: proportional to 1 / rank, decreasing, at least 1."""
    return np.maximum(1, (100.0 * vocab / np.arange(1, vocab + 1)).astype(np.int64))


@dataclass(frozen=True)
class Batch:
    """Hidden vectors (N, D) and target words (N,)."""

    hidden_ND: NDArray[np.float64]
    targets_N: NDArray[np.int64]


def batch(counts_V: NDArray[np.int64], *, tokens: int, dim: int, seed: int) -> Batch:
    """Draw hidden vectors with entries in (-1, 1), like those of an LSTM, and targets in proportion to the counts."""
    rng = np.random.default_rng([seed, 7])
    targets_N = np.searchsorted(np.cumsum(counts_V), rng.random(tokens) * counts_V.sum(), side="right")
    return Batch(np.tanh(rng.standard_normal((tokens, dim))), targets_N.astype(np.int64))
