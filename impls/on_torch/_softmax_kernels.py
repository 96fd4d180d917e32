"""Triton kernels for the softmax of a block of the vocabulary: each goes once over the block's logits, which PyTorch's
own operations would read and write six times.
"""

# Where Triton is not installed, a kernel seems a plain function, which takes no grid.
# pyright: reportIndexIssue=false

from __future__ import annotations

import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

_COLUMNS = 4096  # of a row that are looked at together


@triton.jit
def _add_kernel(logits_NB, target_N, log_sum_N, score_N, first, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(target_N + token) - first
    row = logits_NB + token * width
    highest = tl.load(log_sum_N + token)
    total = tl.where(highest == -float("inf"), 0.0, 1.0)
    for start in range(0, width, BLOCK):
        column_B = start + tl.arange(0, BLOCK)
        logits_B = tl.load(row + column_B, mask=column_B < width, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(logits_B, 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(logits_B - higher), 0)
        highest = higher
    tl.store(log_sum_N + token, highest + tl.log(total))
    inside = (place >= 0) & (place < width)
    tl.store(score_N + token, tl.load(row + place, mask=inside, other=0.0).to(tl.float32), mask=inside)


@triton.jit
def _differentiate_kernel(logits_NB, target_N, log_sum_N, dnll_N, first, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(target_N + token) - first
    column_B = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at_B = logits_NB + token * width + column_B
    logits_B = tl.load(at_B, mask=column_B < width, other=-float("inf")).to(tl.float32)
    dlogits_B = tl.exp(logits_B - tl.load(log_sum_N + token)) - (column_B == place).to(tl.float32)
    dlogits_B *= tl.load(dnll_N + token)
    tl.store(at_B, dlogits_B.to(logits_NB.dtype.element_ty), mask=column_B < width)


def add_block(logits_NB: Tensor, targets_N: Tensor, first: int, log_sum_N: Tensor, score_N: Tensor) -> None:
    """Adds a block to the log-sum-exp so far, float32 and -inf before the first, and writes the logits of the targets
    that are among its words.

    Args:
        logits_NB: Of the words from `first` on.
        targets_N: Word ids.
    """
    tokens, width = logits_NB.shape
    _add_kernel[(tokens,)](logits_NB, targets_N, log_sum_N, score_N, first, width, BLOCK=_COLUMNS, num_warps=8)


def differentiate_block(logits_NB: Tensor, targets_N: Tensor, first: int, log_sum_N: Tensor, dnll_N: Tensor) -> Tensor:
    """d loss / d logits, in the place of the logits."""
    tokens, width = logits_NB.shape
    grid = (tokens, triton.cdiv(width, _COLUMNS))
    _differentiate_kernel[grid](logits_NB, targets_N, log_sum_N, dnll_N, first, width, BLOCK=_COLUMNS, num_warps=8)
    return logits_NB
