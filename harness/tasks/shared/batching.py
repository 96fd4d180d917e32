"""Samples in batches: those of like length together, padded to a few widths, since JAX compiles for each.

A sample is an input, such as a text or an utterance, and what is to be made of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_POOL = 50  # batches that are sorted by length together: enough for like lengths, few enough for chance


def spread(count: int, wanted: int) -> NDArray[np.int64]:
    """So many of `count` numbers from 0, evenly over all of them; every one where `wanted` is 0 or more than that."""
    wanted = min(wanted, count) or count
    return np.arange(wanted, dtype=np.int64) * count // wanted


def widths(lengths_P: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """At most `count` rising widths, the last of them the longest text's, that pad all texts with the fewest places.

    By dynamic programming over the lengths there are: with one width more, the shorter texts are padded as well as
    could be without it, the others to the longest of them.
    """
    length_L, texts_L = np.unique(lengths_P, return_counts=True)
    up_to_L = np.cumsum(texts_L)
    cost_L, chosen = up_to_L * length_L, [[each] for each in length_L.tolist()]
    for _ in range(1, min(count, len(length_L))):
        # [i, j]: texts up to length i as before, those longer up to j padded to j.
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
    """The narrowest of the widths that each length fits into."""
    return widths_W[np.searchsorted(widths_W, lengths)]


def sorted_batches(widths_P: NDArray[np.int64], lengths_P: NDArray[np.int64], batch: int) -> list[NDArray[np.int64]]:
    """All samples by the width of their inputs, then by the length of their texts, `batch` at a time."""
    order_P = np.lexsort((lengths_P, widths_P))
    return [order_P[start : start + batch] for start in range(0, len(order_P), batch)]


def shuffled_batches(
    widths_P: NDArray[np.int64], lengths_P: NDArray[np.int64], batch: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """The same of random pools of samples, in random order; a few samples that fill no batch are left out."""
    order_P = rng.permutation(len(widths_P))[: len(widths_P) // batch * batch]
    found: list[NDArray[np.int64]] = []
    for start in range(0, len(order_P), batch * _POOL):
        pool_P = order_P[start : start + batch * _POOL]
        found += [pool_P[chosen_B] for chosen_B in sorted_batches(widths_P[pool_P], lengths_P[pool_P], batch)]
    return [found[number] for number in rng.permutation(len(found))]
