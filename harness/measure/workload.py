"""The inputs that layers are checked and timed on, drawn from a seed: the same for every framework."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def zipf_counts(vocab: int) -> NDArray[np.int64]:
    """(V,) word counts as in natural text, count(rank) ~ 1/rank, in falling order and at least 1."""
    return np.maximum(1, (100.0 * vocab / np.arange(1, vocab + 1)).astype(np.int64))


@dataclass(frozen=True)
class Batch:
    hidden_ND: NDArray[np.float64]
    targets_N: NDArray[np.int64]


def batch(counts_V: NDArray[np.int64], *, tokens: int, dim: int, seed: int) -> Batch:
    """Hidden vectors inside (-1, 1), as an LSTM gives them, and targets drawn in proportion to the counts."""
    rng = np.random.default_rng([seed, 7])
    targets_N = np.searchsorted(np.cumsum(counts_V), rng.random(tokens) * counts_V.sum(), side="right")
    return Batch(np.tanh(rng.standard_normal((tokens, dim))), targets_N.astype(np.int64))
