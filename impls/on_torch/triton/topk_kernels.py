"""The k best of many scores by Triton kernels: exact to the order of ties, and nothing waits for the device.

A score and its word's id are one key of 64 bits, in the order of scores and, among equals, from high ids to low ones:
no two are equal, and the best are the highest. A row's columns are groups, blocks of a vocabulary or the clusters of a
layer, and the k best lie in the k groups of the best bests. So one pass over all scores finds the best of each group,
and only those groups are gone through once for each word that is asked for.
"""

# Where Triton is not installed, a kernel seems a plain function, which takes no grid.
# pyright: reportIndexIssue=false

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

MOST = 64  # words asked for
_WIDEST = 2**13  # columns of a group, which a program holds at once
_GROUPS = 2**16  # of a row, fewer than which a GPU takes in that direction of its grid
_WIDTH = 2**10  # of a group where scores have none of their own

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
    """A cluster's words stand by rising ids, so that the first of its best has the lowest, and only that one's key is
    made; its width is known beforehand, so that numbers are loaded eight at a time."""
    row, group, groups = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    slot_B = tl.arange(0, BLOCK)
    column_B, real_B = group * width + slot_B, slot_B < width
    scores_B = tl.load(scores_NF + row * groups * width + column_B, mask=real_B, other=0.0).to(tl.float32)
    scores_B += tl.load(added_F + column_B, mask=real_B, other=-float("inf"))
    highest = tl.max(scores_B, 0)  # finite: a cluster's first slot holds a word
    log_sum = highest + tl.log(tl.sum(tl.exp(scores_B - highest), 0))
    shift = tl.load(log_cluster_NG + row * groups + group) - log_sum
    tl.store(shift_NG + row * groups + group, shift)
    best = highest + shift  # some lower scores may be no lower any more
    slot = tl.min(tl.where(scores_B + shift < best, width - 1, slot_B), 0)  # where none is a number, the first
    tl.store(best_NG + row * groups + group, _keys(best, ids_F, group * width + slot, True, True))


@triton.jit
def _choose_kernel(best_NG, chosen_NM, groups, some, BLOCK: tl.constexpr):
    row, group_B = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keys_B = tl.load(best_NG + row * groups + group_B, mask=group_B < groups, other=_LOWEST)
    for place in range(some):
        is_best_B = keys_B == tl.max(keys_B, 0)
        tl.store(chosen_NM + row * some + place, tl.max(tl.where(is_best_B, group_B, 0), 0))
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
def _best_of_row_kernel(keys_NX, values_NK, ids_NK, found, k, BLOCK: tl.constexpr):
    row, place_B = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keys_B = tl.load(keys_NX + row * found + place_B, mask=place_B < found, other=_LOWEST)
    for number in range(k):
        best = tl.max(keys_B, 0)
        rising = (best >> 32).to(tl.int32)
        bits = tl.where(rising < 0, rising ^ 0x7FFFFFFF, rising)
        tl.store(values_NK + row * k + number, bits.to(tl.float32, bitcast=True))
        tl.store(ids_NK + row * k + number, _IDS - (best & _IDS))
        keys_B = tl.where(keys_B == best, _LOWEST, keys_B)


def best_columns(scores_NF: Tensor, ids_F: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids (N, K) of the k highest scores of a row, ties by lower id.

    Args:
        scores_NF: float32 or half precision.
        ids_F: Ids of the columns, below 2**31; None where they are the columns' own numbers.
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
    """Whether so many clusters of so many slots are what `best_of_clusters` can go through."""
    clusters, slots = word_CS.shape
    return slots <= _WIDEST and clusters < _GROUPS


def best_of_clusters(
    scores_NCS: Tensor, added_CS: Tensor, log_cluster_NC: Tensor, word_CS: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Values log P(c, w | h) and ids (N, K) of the k likeliest words of a two-level layer, ties by lower id.

    Args:
        scores_NCS: Contiguous products of hidden vectors with words, in float32 or half precision.
        added_CS: float32, what each slot gets on top: a number in the first slot, -inf where there is no word.
        log_cluster_NC: float32 log P(c | h).
        word_CS: The word in each slot, below 2**31, by rising ids; as `takes` has it.
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
    """From the best of each group: the k best, of the groups that may hold them."""
    (rows, columns), groups = scores_NF.shape, best_NG.shape[1]
    some = min(k, groups)
    chosen_NM = best_NG.new_empty(rows, some, dtype=torch.int32)
    _choose_kernel[(rows,)](best_NG, chosen_NM, groups, some, **_block(groups))
    keys_NX = best_NG.new_empty(rows, some * k)
    added_F, shift_NG = joint or (scores_NF, scores_NF)
    given = scores_NF, added_F, shift_NG, ids_F, chosen_NM, keys_NX, columns, width, groups, k
    _best_of_chosen_kernel[(rows, some)](*given, OF_CLUSTERS=joint is not None, NAMED=named, **_block(width))
    values_NK, ids_NK = scores_NF.new_empty(rows, k, dtype=torch.float32), keys_NX.new_empty(rows, k)
    _best_of_row_kernel[(rows,)](keys_NX, values_NK, ids_NK, some * k, k, **_block(some * k))
    return values_NK, ids_NK


def _block(width: int) -> dict[str, int]:
    """Places that a program holds, a power of two, and its warps: as few as can, since a warp alone need not wait for
    others to agree on what is best."""
    block = max(32, triton.next_power_of_2(width))
    return {"BLOCK": block, "num_warps": min(8, max(1, block // 1024))}
