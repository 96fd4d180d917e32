"""The k best of many scores by Triton kernels, including the order of ties, and without synchronization.

A score and its word's id form a 64-bit key. Keys are ordered by score and, among equal scores, by falling id, so that
no two are equal and the best are the highest. A row's columns form groups: blocks of a vocabulary or the clusters of a
layer. The k best are in the k groups with the highest best keys. One pass over all scores therefore finds the best key
of each group, and only k groups are searched again, once for each requested word.
"""

# Where Triton is not installed, kernels look like plain functions, which take no grid.
# pyright: reportIndexIssue=false

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

MOST = 64  # words that can be requested
_WIDEST = 2**13  # columns of a group that a program can hold
_GROUPS = 2**16  # a row has fewer groups, which is the limit of that dimension of a GPU's grid
_WIDTH = 2**10  # width of a group where scores have no groups of their own

_LOWEST = tl.constexpr(-0x7FFFFFFFFFFFFFFF)
_IDS = tl.constexpr(0x7FFFFFFF)  # above any id


@triton.jit
def _keys(scores_B, ids_F, column_B, real_B, NAMED: tl.constexpr):
    bits_B = (scores_B + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0, its equal
    rising_B = tl.where(bits_B < 0, bits_B ^ 0x7FFFFFFF, bits_B).to(tl.int64)
    ids_B = tl.load(ids_F + column_B, mask=real_B, other=0) if NAMED else column_B
    return tl.where(real_B, (rising_B << 32) | (_IDS - ids_B.to(tl.int64)), _LOWEST)


@triton.jit
def _best_of_group_kernel(scores_NF, ids_F, best_NG, columns, width, NAMED: tl.constexpr, BLOCK: tl.constexpr):
    row, group, groups = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    slot_B = tl.arange(0, BLOCK)
    column_B = group * width + slot_B
    real_B = (slot_B < width) & (column_B < columns)
    scores_B = tl.load(scores_NF + row * columns + column_B, mask=real_B, other=0.0).to(tl.float32)
    tl.store(best_NG + row * groups + group, tl.max(_keys(scores_B, ids_F, column_B, real_B, NAMED), 0))


@triton.jit
def _best_of_cluster_kernel(
    scores_NF, added_F, log_cluster_NG, ids_F, shift_NG, best_NG, width: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Find the best word of each cluster.

    A cluster's words are ordered by id, so that the first of its best words has the lowest id, and only its key is
    computed. The width is a constant, so that loads are vectorized.
    """
    row, group, groups = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    slot_B = tl.arange(0, BLOCK)
    column_B, real_B = group * width + slot_B, slot_B < width
    scores_B = tl.load(scores_NF + row * groups * width + column_B, mask=real_B, other=0.0).to(tl.float32)
    scores_B += tl.load(added_F + column_B, mask=real_B, other=-float("inf"))
    highest = tl.max(scores_B, 0)  # finite: a cluster's first slot holds a word
    log_sum = highest + tl.log(tl.sum(tl.exp(scores_B - highest), 0))
    shift = tl.load(log_cluster_NG + row * groups + group) - log_sum
    tl.store(shift_NG + row * groups + group, shift)
    best = highest + shift  # rounding may have made lower scores equal
    slot = tl.min(tl.where(scores_B + shift < best, width - 1, slot_B), 0)  # the first slot if all are NaN
    tl.store(best_NG + row * groups + group, _keys(best, ids_F, group * width + slot, True, True))


@triton.jit
def _choose_kernel(best_NG, chosen_NM, groups, chosen, BLOCK: tl.constexpr):
    row, group_B = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keys_B = tl.load(best_NG + row * groups + group_B, mask=group_B < groups, other=_LOWEST)
    for place in range(chosen):
        is_best_B = keys_B == tl.max(keys_B, 0)
        tl.store(chosen_NM + row * chosen + place, tl.max(tl.where(is_best_B, group_B, 0), 0))
        keys_B = tl.where(is_best_B, _LOWEST, keys_B)


@triton.jit
def _best_of_chosen_kernel(
    scores_NF, added_F, shift_NG, ids_F, chosen_NM, best_NMK, columns, width, groups, k,
    OF_CLUSTERS: tl.constexpr, NAMED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    group, slot_B = tl.load(chosen_NM + place), tl.arange(0, BLOCK)
    column_B = group * width + slot_B
    real_B = (slot_B < width) & (column_B < columns)
    scores_B = tl.load(scores_NF + row * columns + column_B, mask=real_B, other=0.0).to(tl.float32)
    if OF_CLUSTERS:
        added_B = tl.load(added_F + column_B, mask=real_B, other=-float("inf"))
        real_B = added_B > -float("inf")
        scores_B += added_B
        scores_B += tl.load(shift_NG + row * groups + group)
    keys_B = _keys(scores_B, ids_F, column_B, real_B, NAMED)
    for number in range(k):
        best = tl.max(keys_B, 0)
        tl.store(best_NMK + place * k + number, best)
        keys_B = tl.where(keys_B == best, _LOWEST, keys_B)


@triton.jit
def _best_of_row_kernel(keys_NX, values_NK, ids_NK, keys, k, BLOCK: tl.constexpr):
    row, place_B = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keys_B = tl.load(keys_NX + row * keys + place_B, mask=place_B < keys, other=_LOWEST)
    for number in range(k):
        best = tl.max(keys_B, 0)
        rising = (best >> 32).to(tl.int32)
        bits = tl.where(rising < 0, rising ^ 0x7FFFFFFF, rising)
        tl.store(values_NK + row * k + number, bits.to(tl.float32, bitcast=True))
        tl.store(ids_NK + row * k + number, _IDS - (best & _IDS))
        keys_B = tl.where(keys_B == best, _LOWEST, keys_B)


def best_columns(scores_NF: Tensor, ids_F: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return values and ids (N, K) of the k highest scores of each row, ties by lower id.

    Args:
        scores_NF: Scores in float32 or half precision.
        ids_F: Ids of the columns, below 2**31; None if they are the column indices.
        k: At most `MOST` and F.
    """
    scores_NF = scores_NF.contiguous()
    rows, columns = scores_NF.shape
    groups, block = triton.cdiv(columns, _WIDTH), _block(_WIDTH)
    best_NG = scores_NF.new_empty(rows, groups, dtype=torch.int64)
    named = scores_NF if ids_F is None else ids_F
    _best_of_group_kernel[(rows, groups)](scores_NF, named, best_NG, columns, _WIDTH, NAMED=ids_F is not None, **block)
    return _best_of_groups(scores_NF, None, named, best_NG, _WIDTH, k, named=ids_F is not None)


def takes(word_CS: Tensor) -> bool:
    """Return whether `best_of_clusters` can handle so many clusters and slots."""
    clusters, slots = word_CS.shape
    return slots <= _WIDEST and clusters < _GROUPS


def best_of_clusters(
    scores_NCS: Tensor, added_CS: Tensor, log_cluster_NC: Tensor, word_CS: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Return values log P(c, w | h) and ids (N, K) of the k likeliest words of a two-level layer, ties by lower id.

    Args:
        scores_NCS: Contiguous products of hidden vectors with words, in float32 or half precision.
        added_CS: Offset of each slot in float32: finite in the first slot, -inf in empty slots.
        log_cluster_NC: log P(c | h) in float32.
        word_CS: The word in each slot, below 2**31, in rising order; its shape must satisfy `takes`.
        k: At most `MOST` and the number of words.
    """
    rows, clusters, width = scores_NCS.shape
    best_NC = scores_NCS.new_empty(rows, clusters, dtype=torch.int64)
    shift_NC = torch.empty_like(best_NC, dtype=torch.float32)
    log_cluster_NC, added_CS, word_CS = log_cluster_NC.contiguous(), added_CS.contiguous(), word_CS.contiguous()
    given = scores_NCS, added_CS, log_cluster_NC, word_CS, shift_NC, best_NC
    _best_of_cluster_kernel[(rows, clusters)](*given, width=width, **_block(width))
    joint = added_CS, shift_NC
    return _best_of_groups(scores_NCS.flatten(1), joint, word_CS, best_NC, width, k, named=True)


def _best_of_groups(
    scores_NF: Tensor, joint: tuple[Tensor, Tensor] | None, ids_F: Tensor, best_NG: Tensor, width: int, k: int,
    *, named: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the k best, from the groups that can contain them."""
    (rows, columns), groups = scores_NF.shape, best_NG.shape[1]
    chosen = min(k, groups)
    chosen_NM = best_NG.new_empty(rows, chosen, dtype=torch.int32)
    _choose_kernel[(rows,)](best_NG, chosen_NM, groups, chosen, **_block(groups))
    keys_NX = best_NG.new_empty(rows, chosen * k)
    added_F, shift_NG = joint or (scores_NF, scores_NF)
    given = scores_NF, added_F, shift_NG, ids_F, chosen_NM, keys_NX, columns, width, groups, k
    _best_of_chosen_kernel[(rows, chosen)](*given, OF_CLUSTERS=joint is not None, NAMED=named, **_block(width))
    values_NK, ids_NK = scores_NF.new_empty(rows, k, dtype=torch.float32), keys_NX.new_empty(rows, k)
    _best_of_row_kernel[(rows,)](keys_NX, values_NK, ids_NK, chosen * k, k, **_block(chosen * k))
    return values_NK, ids_NK


def _block(width: int) -> dict[str, int]:
    """Return the places that a program holds, a power of two, and its warps.

    There are as few warps as possible, since a single warp need not synchronize with others to find the best.
    """
    block = max(32, triton.next_power_of_2(width))
    return {"BLOCK": block, "num_warps": min(8, max(1, block // 1024))}
