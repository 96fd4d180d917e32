"""The k likeliest of words that are all scored, by Pallas kernels: exact to the order of ties, and nothing waits for
the device, as `lax.cond` does.

Triton compiles them; they are those of `impls/on_torch/_best_kernels.py`. Words are in groups, the clusters of a layer
or leaves of a tree side by side. One pass over all scores finds the best word of each group; the k best lie in the k
groups of the best bests, and only those are gone through once for each word that is asked for. Of equals the one with
the lowest id is the best.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from impls.on_jax._layer import Array
from impls.on_jax._pallas import call, iota, loop

MOST = 64  # words asked for
WIDTH = 2**10  # of a group where words have none of their own
_WIDEST = 2**13  # slots of a group, and groups, that a program holds at once
_NOTHING = np.int32(2**31 - 1)  # an id above all others


def takes(groups: int, width: int, k: int) -> bool:
    """Whether these functions go through so many groups of so many slots for so many words."""
    return max(groups, width) <= _WIDEST and k <= MOST


def _best(values_B: Array, ids_B: Array) -> tuple[Array, Array]:
    """The highest value, and the lowest id of those that have it."""
    best = values_B.max()
    return best, jnp.where(values_B == best, ids_B, _NOTHING).min()


def _without(values_B: Array, ids_B: Array, best: Array, lowest: Array) -> tuple[Array, Array]:
    """The same words but for one, which is never the best again: what is -inf as well has a lower id."""
    taken_B = (values_B == best) & (ids_B == lowest)
    return jnp.where(taken_B, -jnp.inf, values_B), jnp.where(taken_B, _NOTHING, ids_B)


def _slots(group: Array, size: int, word_CS: Any) -> tuple[Array, Array]:
    slot_B = iota(size)
    return slot_B, plgpu.load(word_CS.at[group, slot_B], mask=slot_B < word_CS.shape[1], other=-1)


def _ids(word_B: Array) -> Array:
    return jnp.where(word_B < 0, _NOTHING, word_B)


def _scores(scores_NF: Any, bias_CS: Any, width: int, row: Array, group: Array, slot_B: Array, word_B: Array) -> Array:
    """(B,) of a cluster's words, -inf in an empty slot."""
    real_B = word_B >= 0
    scores_B = plgpu.load(scores_NF.at[row, group * width + slot_B], mask=real_B, other=-jnp.inf)
    if bias_CS is None:
        return scores_B
    return scores_B + plgpu.load(bias_CS.at[group, slot_B], mask=real_B, other=0.0).astype(jnp.float32)


def _clusters_kernel(scores_NF, bias_CS, log_cluster_NC, word_CS, shift_NC, best_NC, ids_NC, *, size):  # type: ignore[no-untyped-def]
    row, group = pl.program_id(0), pl.program_id(1)
    slot_B, word_B = _slots(group, size, word_CS)
    scores_B = _scores(scores_NF, bias_CS, word_CS.shape[1], row, group, slot_B, word_B)
    highest = scores_B.max()  # finite: a cluster's first slot holds a word
    shift = log_cluster_NC[row, group] - highest - jnp.log(jnp.exp(scores_B - highest).sum())
    shift_NC[row, group] = shift
    best_NC[row, group], ids_NC[row, group] = _best(scores_B + shift, _ids(word_B))


def _groups_kernel(scores_NF, word_CS, best_NC, ids_NC, *, size):  # type: ignore[no-untyped-def]
    row, group = pl.program_id(0), pl.program_id(1)
    slot_B, word_B = _slots(group, size, word_CS)
    scores_B = _scores(scores_NF, None, word_CS.shape[1], row, group, slot_B, word_B)
    best_NC[row, group], ids_NC[row, group] = _best(scores_B, _ids(word_B))


def _choose_kernel(best_NC, ids_NC, chosen_NM, *, size):  # type: ignore[no-untyped-def]
    row, group_B = pl.program_id(0), iota(size)
    real_B = group_B < best_NC.shape[1]
    best_B = plgpu.load(best_NC.at[row, group_B], mask=real_B, other=-jnp.inf)
    ids_B = plgpu.load(ids_NC.at[row, group_B], mask=real_B, other=_NOTHING)

    def choose(place: Array, left: tuple[Array, Array]) -> tuple[Array, Array]:
        best, lowest = _best(*left)
        # Ids differ, but for those of places where there is no cluster, which are never chosen.
        chosen_NM[row, place] = jnp.where(left[1] == lowest, group_B, 0).max()
        return _without(*left, best, lowest)

    loop(jnp.int32(chosen_NM.shape[1]), choose, (best_B, ids_B))


def _chosen_kernel(scores_NF, bias_CS, shift_NC, word_CS, chosen_NM, values_NMK, ids_NMK, *, size):  # type: ignore[no-untyped-def]
    row, number = pl.program_id(0), pl.program_id(1)
    group = chosen_NM[row, number]
    slot_B, word_B = _slots(group, size, word_CS)
    joint_B = _scores(scores_NF, bias_CS, word_CS.shape[1], row, group, slot_B, word_B)
    if shift_NC is not None:
        joint_B = joint_B + shift_NC[row, group]

    def take(place: Array, left: tuple[Array, Array]) -> tuple[Array, Array]:
        best, lowest = _best(*left)
        values_NMK[row, number, place], ids_NMK[row, number, place] = best, lowest
        return _without(*left, best, lowest)

    loop(jnp.int32(values_NMK.shape[2]), take, (joint_B, _ids(word_B)))


def _row_kernel(values_NX, ids_NX, values_NK, ids_NK, *, size):  # type: ignore[no-untyped-def]
    row, place_B = pl.program_id(0), iota(size)
    real_B = place_B < values_NX.shape[1]
    values_B = plgpu.load(values_NX.at[row, place_B], mask=real_B, other=-jnp.inf)
    ids_B = plgpu.load(ids_NX.at[row, place_B], mask=real_B, other=_NOTHING)

    def take(place: Array, left: tuple[Array, Array]) -> tuple[Array, Array]:
        best, lowest = _best(*left)
        values_NK[row, place], ids_NK[row, place] = best, lowest
        return _without(*left, best, lowest)

    loop(jnp.int32(values_NK.shape[1]), take, (values_B, ids_B))


def _call(kernel: Any, grid: tuple[int, ...], held: int, interpret: bool, *out: tuple[Any, tuple[int, ...]]) -> Any:
    """`kernel`, of whose programs each holds so many places, by as few warps as can: a warp alone need not wait for
    others to agree on what is best."""
    size = max(32, pl.next_power_of_2(held))
    shapes = [jax.ShapeDtypeStruct(shape, kind) for kind, shape in out]
    return call(partial(kernel, size=size), shapes, grid, min(8, max(1, size // 1024)), 1, interpret)


def _best_of_bests(
    scores_NF: Array, joint: tuple[Array | None, Array | None], best_NC: Array, ids_NC: Array, word_CS: Array, k: int,
    interpret: bool,
) -> tuple[Array, Array]:  # fmt: skip
    """From the best of each group: the k best, of the groups that may hold them."""
    (rows, groups), width = best_NC.shape, word_CS.shape[1]
    some, bias_CS, shift_NC = min(k, groups), *joint
    (chosen_NM,) = _call(_choose_kernel, (rows,), groups, interpret, (jnp.int32, (rows, some)))(best_NC, ids_NC)
    found = (jnp.float32, (rows, some, k)), (jnp.int32, (rows, some, k))
    of_chosen = _call(_chosen_kernel, (rows, some), width, interpret, *found)
    values_NMK, ids_NMK = of_chosen(scores_NF, bias_CS, shift_NC, word_CS, chosen_NM)
    of_row = _call(_row_kernel, (rows,), some * k, interpret, (jnp.float32, (rows, k)), (jnp.int32, (rows, k)))
    return tuple(of_row(values_NMK.reshape(rows, -1), ids_NMK.reshape(rows, -1)))  # type: ignore[return-value]


def best_of_clusters(
    scores_NF: Array, bias_CS: Array | None, log_cluster_NC: Array, word_CS: Array, k: int, interpret: bool = False
) -> tuple[Array, Array]:
    """Values log P(c, w | h) and ids (N, K) of the k likeliest words of a two-level layer, ties by lower id.

    Args:
        scores_NF: float32 products of hidden vectors with the words of all slots, cluster by cluster.
        bias_CS: What a word's score gets on top, or None.
        log_cluster_NC: float32 log P(c | h).
        word_CS: int32, the word in each slot, negative where there is none; no cluster is empty.
        k: As `takes` has it, at most the number of words.
        interpret: By Pallas' interpreter, which needs no GPU.
    """
    each = log_cluster_NC.shape
    out = (jnp.float32, each), (jnp.float32, each), (jnp.int32, each)
    of_clusters = _call(_clusters_kernel, each, word_CS.shape[1], interpret, *out)
    shift_NC, best_NC, ids_NC = of_clusters(scores_NF, bias_CS, log_cluster_NC, word_CS)
    return _best_of_bests(scores_NF, (bias_CS, shift_NC), best_NC, ids_NC, word_CS, k, interpret)


def best_of_groups(scores_NF: Array, word_CS: Array, k: int, interpret: bool = False) -> tuple[Array, Array]:
    """Values and ids (N, K) of the k highest float32 scores, ties by lower id; the rest as for `best_of_clusters`."""
    each = len(scores_NF), len(word_CS)
    of_groups = _call(_groups_kernel, each, word_CS.shape[1], interpret, (jnp.float32, each), (jnp.int32, each))
    best_NC, ids_NC = of_groups(scores_NF, word_CS)
    return _best_of_bests(scores_NF, (None, None), best_NC, ids_NC, word_CS, k, interpret)
