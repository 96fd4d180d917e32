"""The k best of scored words by Triton kernels: exact to the order of ties, and nothing waits for the device.

A score and its word's id are one key of 64 bits, in the order of scores and, among equals, from high ids to low ones:
no two are equal, and the best are the highest. A program takes the k best of a block of a row; those of all blocks are
gone through again, until a block holds them.
"""

# Where Triton is not installed, a kernel seems a plain function, which takes no grid.
# pyright: reportIndexIssue=false

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

MOST = 64  # words asked for: a program goes through its block once for each
_BLOCK = 2048

_LOWEST = tl.constexpr(-0x7FFFFFFFFFFFFFFF)
_IDS = tl.constexpr(0x7FFFFFFF)  # above any id


@triton.jit
def _store_best(keys_B, best_K, k):
    for place in range(k):
        best = tl.max(keys_B, 0)
        tl.store(best_K + place, best)
        keys_B = tl.where(keys_B == best, _LOWEST, keys_B)


@triton.jit
def _score_keys_kernel(scores_NF, ids_F, best_NBK, found, k, HAS_IDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place_B = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real_B = place_B < found
    scores_B = tl.load(scores_NF + row * found + place_B, mask=real_B, other=0.0) + 0.0  # -0 becomes 0, its equal
    bits_B = scores_B.to(tl.int32, bitcast=True)
    rising_B = tl.where(bits_B < 0, bits_B ^ 0x7FFFFFFF, bits_B).to(tl.int64)
    ids_B = tl.load(ids_F + place_B, mask=real_B, other=0) if HAS_IDS else place_B
    keys_B = tl.where(real_B, (rising_B << 32) | (_IDS - ids_B.to(tl.int64)), _LOWEST)
    best_K = best_NBK + (row * tl.num_programs(1) + tl.program_id(1)) * k
    _store_best(keys_B, best_K, k)


@triton.jit
def _keys_kernel(keys_NF, best_NBK, found, k, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place_B = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keys_B = tl.load(keys_NF + row * found + place_B, mask=place_B < found, other=_LOWEST)
    best_K = best_NBK + (row * tl.num_programs(1) + tl.program_id(1)) * k
    _store_best(keys_B, best_K, k)


@triton.jit
def _last_kernel(keys_NF, values_NK, ids_NK, found, k, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place_B = tl.arange(0, BLOCK)
    keys_B = tl.load(keys_NF + row * found + place_B, mask=place_B < found, other=_LOWEST)
    for place in range(k):
        best = tl.max(keys_B, 0)
        rising = (best >> 32).to(tl.int32)
        bits = tl.where(rising < 0, rising ^ 0x7FFFFFFF, rising)
        tl.store(values_NK + row * k + place, bits.to(tl.float32, bitcast=True))
        tl.store(ids_NK + row * k + place, _IDS - (best & _IDS))
        keys_B = tl.where(keys_B == best, _LOWEST, keys_B)


def best_columns(scores_NF: Tensor, ids_F: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids (N, K) of the k highest scores of a row, ties by lower id.

    Args:
        scores_NF: float32.
        ids_F: int64 ids of the columns, below 2**31; None where they are the columns' own numbers. Columns of one id
            may stand for nothing, with a score of -inf.
        k: At most `MOST` and F.
    """
    scores_NF = scores_NF.contiguous()
    rows, found = scores_NF.shape
    blocks = triton.cdiv(found, _BLOCK)
    keys_NF = scores_NF.new_empty(rows, blocks * k, dtype=torch.int64)
    given = scores_NF, scores_NF if ids_F is None else ids_F, keys_NF, found, k
    # A block with fewer than k columns gives the lowest key for those that are not there.
    _score_keys_kernel[(rows, blocks)](*given, HAS_IDS=ids_F is not None, BLOCK=_BLOCK, num_warps=4)
    while keys_NF.shape[1] > _BLOCK:
        found = keys_NF.shape[1]
        blocks = triton.cdiv(found, _BLOCK)
        before_NF, keys_NF = keys_NF, keys_NF.new_empty(rows, blocks * k)
        _keys_kernel[(rows, blocks)](before_NF, keys_NF, found, k, BLOCK=_BLOCK, num_warps=4)
    values_NK, ids_NK = scores_NF.new_empty(rows, k), keys_NF.new_empty(rows, k)
    found = keys_NF.shape[1]
    block = max(16, triton.next_power_of_2(found))
    _last_kernel[(rows,)](keys_NF, values_NK, ids_NK, found, k, BLOCK=block, num_warps=4)
    return values_NK, ids_NK
