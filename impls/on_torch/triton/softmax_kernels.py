"""Triton kernels for a softmax over logits, of a block of the vocabulary or of clusters, and for the mean of losses.

Each kernel reads the logits once, where PyTorch's operations would read and write them six times. The mean of a batch's
losses, with padding, is one launch instead of several.
"""

# Where Triton is not installed, kernels look like plain functions, which take no grid.
# pyright: reportIndexIssue=false

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from vocabench.impls.on_torch.ops.once import once_differentiable

_COLUMNS = 4096  # columns of a row that are read at a time
_TOKENS = 1024  # losses that are read at a time


@triton.jit
def _log_sum(logits_B, width, highest, total, BLOCK: tl.constexpr):
    """Return the log-sum-exp of a row and of `total`, which is relative to `highest`."""
    for start in range(0, width, BLOCK):
        column_B = start + tl.arange(0, BLOCK)
        here_B = tl.load(logits_B + column_B, mask=column_B < width, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(here_B, 0))
        level = tl.where(higher == -float("inf"), 0.0, higher)  # where nothing is finite yet
        total = total * tl.exp(highest - level) + tl.sum(tl.exp(here_B - level), 0)
        highest = higher
    return highest + tl.log(total)


@triton.jit
def _add_kernel(logits_NB, target_N, log_sum_N, score_N, first, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(target_N + token) - first
    row = logits_NB + token * width
    highest = tl.load(log_sum_N + token)
    total = tl.where(highest == -float("inf"), 0.0, 1.0)
    tl.store(log_sum_N + token, _log_sum(row, width, highest, total, BLOCK))
    inside = (place >= 0) & (place < width)
    tl.store(score_N + token, tl.load(row + place, mask=inside, other=0.0).to(tl.float32), mask=inside)


@triton.jit
def _nll_kernel(logits_NB, target_N, log_sum_N, nll_N, width, classes, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    row = logits_NB + token * width
    highest, total = tl.full((), -float("inf"), tl.float32), tl.full((), 0.0, tl.float32)
    log_sum = _log_sum(row, classes, highest, total, BLOCK)
    tl.store(log_sum_N + token, log_sum)
    target = tl.load(target_N + token)
    score = tl.load(row + target, mask=(target >= 0) & (target < classes), other=float("nan")).to(tl.float32)
    tl.store(nll_N + token, log_sum - score)


@triton.jit
def _differentiate_kernel(
    logits_NB, dlogits_NB, target_N, log_sum_N, dnll_N, first, width, classes, BLOCK: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(target_N + token) - first
    column_B = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at_B = token * width + column_B
    logits_B = tl.load(logits_NB + at_B, mask=column_B < classes, other=-float("inf")).to(tl.float32)
    dlogits_B = tl.exp(logits_B - tl.load(log_sum_N + token)) - (column_B == place).to(tl.float32)
    dlogits_B *= tl.load(dnll_N + token)
    tl.store(dlogits_NB + at_B, dlogits_B.to(dlogits_NB.dtype.element_ty), mask=column_B < width)


@triton.jit
def _sum_kernel(losses_N, padding_N, total, count, tokens, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    sum_B = tl.zeros((BLOCK,), tl.float32)
    real_B = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, tokens, BLOCK):
        token_B = start + tl.arange(0, BLOCK)
        inside_B = tl.load(padding_N + token_B, mask=token_B < tokens, other=1) == 0
        sum_B += tl.load(losses_N + token_B, mask=inside_B, other=0.0)
        real_B += inside_B.to(tl.int32)
    tokens_counted = tl.maximum(tl.sum(real_B), 1).to(tl.float32) if MEAN else 1.0
    tl.store(total, tl.sum(sum_B) / tokens_counted)
    tl.store(count, tokens_counted)


@triton.jit
def _share_kernel(dtotal, count, padding_N, dlosses_N, tokens, BLOCK: tl.constexpr):
    token_B = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    padding_B = tl.load(padding_N + token_B, mask=token_B < tokens, other=1) != 0
    share = tl.load(dtotal).to(tl.float32) / tl.load(count)
    tl.store(dlosses_N + token_B, tl.where(padding_B, 0.0, share), mask=token_B < tokens)


def add_block(logits_NB: Tensor, targets_N: Tensor, first: int, log_sum_N: Tensor, score_N: Tensor) -> None:
    """Add a block to the log-sum-exp so far, and write the logits of the targets that are among its words.

    Args:
        logits_NB: Logits of the words from `first` on.
        targets_N: Word ids.
        first: First word of the block.
        log_sum_N: Log-sum-exp so far, in float32; -inf before the first block.
        score_N: Logits of the targets.
    """
    tokens, width = logits_NB.shape
    block = _block(width)
    _add_kernel[(tokens,)](logits_NB, targets_N, log_sum_N, score_N, first, width, BLOCK=block, num_warps=_warps(block))


def differentiate_block(logits_NB: Tensor, targets_N: Tensor, first: int, log_sum_N: Tensor, dnll_N: Tensor) -> Tensor:
    """Overwrite the logits with d loss / d logits and return them."""
    given = logits_NB, logits_NB, targets_N, log_sum_N, dnll_N
    return _differentiated(*given, first, classes=logits_NB.shape[1])


def _differentiated(
    logits_NB: Tensor,
    dlogits_NB: Tensor,
    targets_N: Tensor,
    log_sum_N: Tensor,
    dnll_N: Tensor,
    first: int,
    classes: int,
) -> Tensor:
    """Write and return `dlogits_NB`, with zeros in the columns beyond the classes."""
    tokens, width = logits_NB.shape
    block = _block(width)
    grid = (tokens, triton.cdiv(width, block))
    given = logits_NB, dlogits_NB, targets_N, log_sum_N, dnll_N
    _differentiate_kernel[grid](*given, first, width, classes, BLOCK=block, num_warps=_warps(block))
    return dlogits_NB


def _block(width: int) -> int:
    return min(_COLUMNS, triton.next_power_of_2(width))


def _warps(block: int) -> int:
    return max(1, block * 8 // _COLUMNS)


class _Nll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_NB, targets_N, classes) -> Tensor:  # type: ignore[override]
        logits_NB, targets_N, (tokens, width) = logits_NB.contiguous(), targets_N.contiguous(), logits_NB.shape
        nll_N, log_sum_N = (logits_NB.new_empty(tokens, dtype=torch.float32) for _ in range(2))
        given, block = (logits_NB, targets_N, log_sum_N, nll_N), _block(width)
        _nll_kernel[(tokens,)](*given, width, classes, BLOCK=block, num_warps=_warps(block))
        ctx.save_for_backward(logits_NB, targets_N, log_sum_N)
        ctx.classes = classes
        return nll_N

    @staticmethod
    @once_differentiable
    def backward(ctx, dnll_N):  # type: ignore[override]
        logits_NB, targets_N, log_sum_N = ctx.saved_tensors
        given = logits_NB, torch.empty_like(logits_NB), targets_N, log_sum_N, dnll_N.contiguous()
        return _differentiated(*given, 0, ctx.classes), None, None


def nll(logits_NB: Tensor, targets_N: Tensor, classes: int) -> Tensor:
    """Return (N,) float32 negative log-likelihoods of logits in any precision, differentiable.

    Args:
        logits_NB: Logits of the classes, and possibly more columns.
        targets_N: Class ids.
        classes: Number of classes; the columns beyond are ignored and have a gradient of 0.
    """
    return _Nll.apply(logits_NB, targets_N, classes)  # type: ignore[return-value]


class _Reduced(torch.autograd.Function):
    """The sum divided by `count`, and `count`; differentiable any number of times."""

    @staticmethod
    def forward(losses_N, padding_N, mean) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        total, count = losses_N.new_empty(()), losses_N.new_empty(())
        given = losses_N.contiguous(), padding_N, total, count, len(losses_N)
        _sum_kernel[(1,)](*given, MEAN=mean, BLOCK=_TOKENS)
        return total, count

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[override]
        ctx.save_for_backward(inputs[1], output[1])
        ctx.mean = inputs[2]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, dtotal, dcount):  # type: ignore[override]
        padding_N, count = ctx.saved_tensors
        return _Shared.apply(dtotal, count, padding_N, ctx.mean), None, None


class _Shared(torch.autograd.Function):
    """(N,) gradient of each loss, from the gradient of their sum divided by `count`."""

    @staticmethod
    def forward(dtotal, count, padding_N, mean) -> Tensor:  # type: ignore[override]
        tokens = len(padding_N)
        dlosses_N = torch.empty_like(padding_N, dtype=torch.float32)
        _share_kernel[(triton.cdiv(tokens, _TOKENS),)](dtotal, count, padding_N, dlosses_N, tokens, BLOCK=_TOKENS)
        return dlosses_N

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[override]
        ctx.save_for_backward(inputs[2])
        ctx.mean = inputs[3]

    @staticmethod
    def backward(ctx, ddlosses_N):  # type: ignore[override]
        (padding_N,) = ctx.saved_tensors
        return _Reduced.apply(ddlosses_N, padding_N, ctx.mean)[0], None, None, None  # type: ignore[index]


def reduced(losses_N: Tensor, padding_N: Tensor, mean: bool) -> Tensor:
    """Return the sum or the mean of float32 losses without padding, 0 if there are none. Differentiable."""
    return _Reduced.apply(losses_N, padding_N.contiguous(), mean)[0]  # type: ignore[index]
