"""The k likeliest words by Pallas kernels, with all words scored: exact including ties, and without synchronization.

They follow `impls/on_torch/triton/topk_kernels.py`. Words are in groups: the clusters of a layer, or adjacent leaves of
a tree. One pass over all scores finds the best word of each group. The k best words are in the k groups with the best
best words, and each of these groups is searched once for each of k words. Ties are resolved by the lowest id. A row
that contains NaN has NaN values and the first ids.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from vocabench.impls.on_jax.ops.arrays import Array
from vocabench.impls.on_jax.pallas.support import call, iota, loop

MOST = 64  # largest k
WIDTH = 2**10  # width of a group where words have no groups of their own
_WIDEST = 2**13  # largest number of slots of a group, and of groups, that a program holds
_NOTHING = np.int32(2**31 - 1)  # an id above all word ids


def takes(groups: int, width: int, k: int) -> bool:
    """Return whether these functions can handle so many groups of `width` slots, and k words."""
    return max(groups, width) <= _WIDEST and k <= MOST


def _best(values_B: Array, ids_B: Array) -> tuple[Array, Array]:
    """Return the highest value, and the lowest id that has it."""
    best = values_B.max()
    return best, jnp.where(values_B == best, ids_B, _NOTHING).min()


def _take(count: int, values_B: Array, ids_B: Array, keep: Callable[[Array, Array, Array, Array], None]) -> None:
    """Take the best word `count` times, and call `keep` with its number, the remaining ids, its value and its id."""

    def take(number: Array, left: tuple[Array, Array]) -> tuple[Array, Array]:
        values_B, ids_B = left
        best, lowest = _best(values_B, ids_B)
        keep(number, ids_B, best, lowest)
        # It is never the best again, because other words with -inf have lower ids.
        taken_B = (values_B == best) & (ids_B == lowest)
        return jnp.where(taken_B, -jnp.inf, values_B), jnp.where(taken_B, _NOTHING, ids_B)

    loop(jnp.int32(count), take, (values_B, ids_B))


def _of_row(values_NX: Any, ids_NX: Any, row: Array, size: int) -> tuple[Array, Array]:
    """Return the values and ids (B,) of a row, padded with -inf."""
    place_B = iota(size)
    real_B = place_B < values_NX.shape[1]
    values_B = plgpu.load(values_NX.at[row, place_B], mask=real_B, other=-jnp.inf)
    return values_B, plgpu.load(ids_NX.at[row, place_B], mask=real_B, other=_NOTHING)


def _scored(scores_NF: Any, bias_CS: Any, word_CS: Any, row: Array, group: Array, size: int) -> tuple[Array, Array]:
    """Return the scores and ids (B,) of a group's words, with -inf in empty slots."""
    width, slot_B = word_CS.shape[1], iota(size)
    word_B = plgpu.load(word_CS.at[group, slot_B], mask=(slot_B < width) & (group >= 0), other=-1)
    real_B = word_B >= 0
    scores_B = plgpu.load(scores_NF.at[row, group * width + slot_B], mask=real_B, other=-jnp.inf)
    if bias_CS is not None:
        biases_B = plgpu.load(bias_CS.at[group, slot_B], mask=real_B, other=0.0)
        scores_B = scores_B + biases_B.astype(jnp.float32)
    return scores_B, jnp.where(real_B, word_B, _NOTHING)


def _bests_kernel(scores_NF, bias_CS, log_cluster_NC, word_CS, best_NC, ids_NC, *shifts, size):  # type: ignore[no-untyped-def]
    row, group = pl.program_id(0), pl.program_id(1)
    scores_B, ids_B = _scored(scores_NF, bias_CS, word_CS, row, group, size)
    for shift_NC in shifts:  # for clusters, the difference between log P(c, w | h) and scores
        highest = scores_B.max()  # finite: a cluster's first slot holds a word
        shift = log_cluster_NC[row, group] - highest - jnp.log(jnp.exp(scores_B - highest).sum())
        shift_NC[row, group] = shift
        scores_B = scores_B + shift
    best_NC[row, group], ids_NC[row, group] = _best(scores_B, ids_B)


def _choose_kernel(best_NC, ids_NC, chosen_NM, *, size):  # type: ignore[no-untyped-def]
    row, group_B = pl.program_id(0), iota(size)

    def keep(number: Array, ids_B: Array, best: Array, lowest: Array) -> None:
        # Ids are unique, except for places without a group, which are chosen if no group has a valid best word.
        chosen_NM[row, number] = jnp.where(lowest == _NOTHING, -1, jnp.where(ids_B == lowest, group_B, 0).max())

    _take(chosen_NM.shape[1], *_of_row(best_NC, ids_NC, row, size), keep)


def _chosen_kernel(scores_NF, bias_CS, shift_NC, word_CS, chosen_NM, values_NMK, ids_NMK, *, size):  # type: ignore[no-untyped-def]
    row, place = pl.program_id(0), pl.program_id(1)
    group = chosen_NM[row, place]
    scores_B, ids_B = _scored(scores_NF, bias_CS, word_CS, row, group, size)
    if shift_NC is not None:
        scores_B = scores_B + shift_NC[row, jnp.maximum(group, 0)]

    def keep(number: Array, ids_B: Array, best: Array, lowest: Array) -> None:
        values_NMK[row, place, number], ids_NMK[row, place, number] = best, lowest

    _take(values_NMK.shape[2], scores_B, ids_B, keep)


def _row_kernel(values_NX, ids_NX, values_NK, ids_NK, *, size):  # type: ignore[no-untyped-def]
    row = pl.program_id(0)

    def keep(number: Array, ids_B: Array, best: Array, lowest: Array) -> None:
        unknown = lowest == _NOTHING
        values_NK[row, number] = jnp.where(unknown, jnp.nan, best)
        ids_NK[row, number] = jnp.where(unknown, number, lowest)

    _take(values_NK.shape[1], *_of_row(values_NX, ids_NX, row, size), keep)


def _call(kernel: Any, grid: tuple[int, ...], held: int, interpret: bool, *out: tuple[Any, tuple[int, ...]]) -> Any:
    """Return `kernel` with programs that hold this many places each, and with as few warps as possible.

    A single warp does not have to synchronize with others to find the best.
    """
    size = max(32, pl.next_power_of_2(held))
    shapes = [jax.ShapeDtypeStruct(shape, kind) for kind, shape in out]
    return call(partial(kernel, size=size), shapes, grid, min(8, max(1, size // 1024)), 1, interpret)


def _best_words(
    scores_NF: Array, bias_CS: Array | None, log_cluster_NC: Array | None, word_CS: Array, k: int, interpret: bool
) -> tuple[Array, Array]:
    """Return the k best words, from the groups that can contain them."""
    (groups, width), rows, chosen = word_CS.shape, len(scores_NF), min(k, len(word_CS))
    by_group = (jnp.float32, (rows, groups)), (jnp.int32, (rows, groups))
    shifts = () if log_cluster_NC is None else by_group[:1]
    find_bests = _call(_bests_kernel, (rows, groups), width, interpret, *by_group, *shifts)
    best_NC, ids_NC, *shift_NC = find_bests(scores_NF, bias_CS, log_cluster_NC, word_CS)
    (chosen_NM,) = _call(_choose_kernel, (rows,), groups, interpret, (jnp.int32, (rows, chosen)))(best_NC, ids_NC)
    by_word = (jnp.float32, (rows, chosen, k)), (jnp.int32, (rows, chosen, k))
    search_chosen = _call(_chosen_kernel, (rows, chosen), width, interpret, *by_word)
    values_NMK, ids_NMK = search_chosen(scores_NF, bias_CS, shift_NC[0] if shift_NC else None, word_CS, chosen_NM)
    merge = _call(_row_kernel, (rows,), chosen * k, interpret, (jnp.float32, (rows, k)), (jnp.int32, (rows, k)))
    return tuple(merge(values_NMK.reshape(rows, -1), ids_NMK.reshape(rows, -1)))  # type: ignore[return-value]


def best_of_clusters(
    scores_NF: Array, bias_CS: Array | None, log_cluster_NC: Array, word_CS: Array, k: int, interpret: bool = False
) -> tuple[Array, Array]:
    """Return values log P(c, w | h) and ids (N, K) of the k likeliest words of a two-level layer, ties by lower id.

    Args:
        scores_NF: float32 products of hidden vectors with the words of all slots, cluster by cluster.
        bias_CS: Word biases, or None.
        log_cluster_NC: float32 log P(c | h).
        word_CS: int32, the word in each slot, negative in empty slots. No cluster is empty.
        k: Number of results; `takes` must allow it.
        interpret: As in `How`.
    """
    return _best_words(scores_NF, bias_CS, log_cluster_NC, word_CS, k, interpret)


def best_of_groups(scores_NF: Array, word_CS: Array, k: int, interpret: bool = False) -> tuple[Array, Array]:
    """Return values and ids (N, K) of the k highest float32 scores. Arguments are those of `best_of_clusters`."""
    return _best_words(scores_NF, None, None, word_CS, k, interpret)
