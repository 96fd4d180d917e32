"""Batches of samples of similar length, padded to a few widths, because JAX compiles for each width.

A sample is an input, such as a text or an utterance, and its target text.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_POOL = 50  # batches that are sorted by length together: enough for similar lengths, few enough to stay random


def spread(count: int, wanted: int) -> NDArray[np.int64]:
    """Return `wanted` of the integers below `count`, evenly spaced; all if `wanted` is 0 or at least `count`."""
    wanted = min(wanted, count) or count
    return np.arange(wanted, dtype=np.int64) * count // wanted


def widths(lengths_P: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return at most `count` rising widths, up to the longest text, that need the least padding.

    Uses dynamic programming over the distinct lengths: with one more width, the shorter texts have optimal widths
    without it, and the others are padded to the longest of them.
    """
    length_L, texts_L = np.unique(lengths_P, return_counts=True)
    up_to_L = np.cumsum(texts_L)
    cost_L, chosen = up_to_L * length_L, [[each] for each in length_L.tolist()]
    for _ in range(1, min(count, len(length_L))):
        # [i, j]: texts up to length i as before, and longer texts up to j padded to j.
        cost_LL = cost_L[:, None] + (up_to_L[None, :] - up_to_L[:, None]) * length_L[None, :]
        cost_LL = np.where(np.tri(len(length_L), dtype=bool), np.iinfo(np.int64).max, cost_LL)
        best_L = cost_LL.argmin(axis=0)
        better_L = cost_LL.min(axis=0) < cost_L
        chosen = [
            [*chosen[before], each] if better else same
            for before, each, better, same in zip(best_L, length_L.tolist(), better_L, chosen, strict=True)
        ]
        cost_L = np.minimum(cost_LL.min(axis=0), cost_L)
    return np.array(chosen[-1], dtype=np.int64)


def width_of(lengths: NDArray[np.int64], widths_W: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the narrowest width that fits each length."""
    return widths_W[np.searchsorted(widths_W, lengths)]


def sorted_batches(widths_P: NDArray[np.int64], lengths_P: NDArray[np.int64], batch: int) -> list[NDArray[np.int64]]:
    """Sort the samples by the width of their inputs, then by the length of their texts, and cut them into batches."""
    order_P = np.lexsort((lengths_P, widths_P))
    return [order_P[start : start + batch] for start in range(0, len(order_P), batch)]


def shuffled_batches(
    widths_P: NDArray[np.int64], lengths_P: NDArray[np.int64], batch: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Like `sorted_batches` within random pools, in random order. Samples that do not fill a batch are left out."""
    order_P = rng.permutation(len(widths_P))[: len(widths_P) // batch * batch]
    found: list[NDArray[np.int64]] = []
    for start in range(0, len(order_P), batch * _POOL):
        pool_P = order_P[start : start + batch * _POOL]
        found += [pool_P[chosen_B] for chosen_B in sorted_batches(widths_P[pool_P], lengths_P[pool_P], batch)]
    return [found[number] for number in rng.permutation(len(found))]
