"""Full softmax without an (N, V) array of logits in PyTorch. See `impls/on_numpy/methods/fused_softmax.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vocabench.impls import cpp
from vocabench.impls.cpp import CPP
from vocabench.impls.forms import Form
from vocabench.impls.on_torch.losses import counted
from vocabench.impls.on_torch.methods.full_softmax import FullSoftmax
from vocabench.impls.on_torch.ops import cpp_kernels, products
from vocabench.impls.on_torch.ops.once import once_differentiable
from vocabench.impls.on_torch.ops.topk import exact_topk
from vocabench.impls.on_torch.parallel.ranks import Ranks
from vocabench.impls.on_torch.sampling import drawn_part
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, at_least_float32, draw
from vocabench.impls.on_torch.tracing import is_tracing
from vocabench.impls.on_torch.triton import availability
from vocabench.impls.on_torch.triton.availability import KERNELS
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import blocks

# A GPU prefers the largest blocks.
_BY_KERNELS = tuple(blocks.by_kernels(form, KERNELS) for form in reversed(blocks.GPU_FORMS))


def _blocks(tokens: int, vocab: int, form: Form) -> Iterator[slice]:
    """Return the range of word ids of each block."""
    width = blocks.width(tokens, vocab, form)
    return (slice(start, min(start + width, vocab)) for start in range(0, vocab, width))


def _logits(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, block: slice) -> Tensor:
    return at_least_float32(products.linear(hidden_ND, weight_VD[block], bias_V[block]))


def _log_sum(logits_NB: Tensor) -> Tensor:
    """Return the (N,) log-sum-exp of a block of logits, which is overwritten."""
    highest_N1 = logits_NB.amax(dim=1, keepdim=True)
    return logits_NB.sub_(highest_N1).exp_().sum(dim=1).log_().add_(highest_N1[:, 0])


def _add_block(log_sum_N: Tensor, logits_NB: Tensor) -> Tensor:
    """Return the log-sum-exp over all blocks so far and this one, whose logits are overwritten."""
    return torch.logaddexp(log_sum_N, _log_sum(logits_NB))


class _Plain:
    """The operations on a block's logits in plain PyTorch; `softmax_kernels` has the same functions."""

    @staticmethod
    def add_block(logits_NB: Tensor, targets_N: Tensor, first: int, log_sum_N: Tensor, target_N: Tensor) -> None:
        logits_NB = at_least_float32(logits_NB)
        inside_N, place_N1 = _place(targets_N, first, logits_NB.shape[1])
        torch.where(inside_N, logits_NB.gather(1, place_N1)[:, 0], target_N, out=target_N)
        log_sum_N.copy_(_add_block(log_sum_N, logits_NB))

    @staticmethod
    def differentiate_block(
        logits_NB: Tensor, targets_N: Tensor, first: int, log_sum_N: Tensor, dnll_N: Tensor
    ) -> Tensor:
        dlogits_NB = at_least_float32(logits_NB).sub_(log_sum_N[:, None]).exp_()
        inside_N, place_N1 = _place(targets_N, first, logits_NB.shape[1])
        dlogits_NB.scatter_add_(1, place_N1, -inside_N.to(dlogits_NB.dtype)[:, None])
        return dlogits_NB.mul_(dnll_N[:, None])


def _steps(form: Form) -> Any:
    if form not in _BY_KERNELS:
        return _Plain
    from vocabench.impls.on_torch.triton import softmax_kernels  # imports Triton, which may not be installed

    return softmax_kernels


class _FusedNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, bias_V, targets_N, form: Form, ranks: Ranks | None) -> Tensor:  # type: ignore[override]
        cast_ND, steps = hidden_ND.to(weight_VD.dtype), _steps(form)
        target_N = at_least_float32(cast_ND.new_zeros(len(cast_ND)))
        log_sum_N = torch.full_like(target_N, -torch.inf)
        for block in _blocks(len(hidden_ND), len(weight_VD), form):
            logits_NB = products.linear(cast_ND, weight_VD[block], bias_V[block])
            steps.add_block(logits_NB, targets_N, block.start, log_sum_N, target_N)
            del logits_NB  # so that only one block is in memory at a time
        if ranks is not None:
            log_sum_N, target_N = ranks.joined(log_sum_N, target_N)
        ctx.save_for_backward(cast_ND, weight_VD, bias_V, targets_N, log_sum_N)
        ctx.hidden_dtype, ctx.form, ctx.ranks = hidden_ND.dtype, form, ranks
        return log_sum_N - target_N

    @staticmethod
    @once_differentiable
    def backward(ctx, dnll_N):  # type: ignore[override]
        hidden_ND, weight_VD, bias_V, targets_N, log_sum_N = ctx.saved_tensors
        steps, dnll_N = _steps(ctx.form), dnll_N.contiguous()
        dhidden_ND = torch.zeros_like(hidden_ND, dtype=log_sum_N.dtype)
        dweight_VD, dbias_V = torch.empty_like(weight_VD), torch.empty_like(bias_V)
        for block in _blocks(len(hidden_ND), len(weight_VD), ctx.form):
            logits_NB = products.linear(hidden_ND, weight_VD[block], bias_V[block])
            dlogits_NB = steps.differentiate_block(logits_NB, targets_N, block.start, log_sum_N, dnll_N)
            dbias_V[block] = dlogits_NB.sum(dim=0)
            dlogits_NB = dlogits_NB.to(weight_VD.dtype)
            dweight_VD[block] = products.weight_gradient(dlogits_NB, hidden_ND)
            products.add_product(dhidden_ND, dlogits_NB, weight_VD[block])
            del logits_NB, dlogits_NB
        if ctx.ranks is not None:
            ctx.ranks.add_up(dhidden_ND)
        return dhidden_ND.to(ctx.hidden_dtype), dweight_VD, dbias_V, None, None, None


def _place(targets_N: Tensor, first: int, width: int) -> tuple[Tensor, Tensor]:
    """Return whether each target (N,) is one of the `width` words from `first` on, and its column (N, 1), or else 0."""
    place_N = targets_N - first
    inside_N = (place_N >= 0) & (place_N < width)
    return inside_N, place_N.masked_fill(~inside_N, 0)[:, None]


def _differentiated(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor, share_N: Tensor, form: Form
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return the sum of the losses, each times its share, and its gradients with respect to the first three arguments.

    Blocks of tokens are processed one after another; the gradients come from the exponentials of a block's logits.
    """
    if form == CPP:
        most = blocks.most_tokens(len(weight_VD), form)
        return cpp_kernels.fused_softmax(hidden_ND, weight_VD, bias_V, targets_N, share_N, most)
    total = hidden_ND.new_zeros(())
    dhidden_ND, dweight_VD, dbias_V = (torch.empty_like(array) for array in (hidden_ND, weight_VD, bias_V))
    width = blocks.of_tokens(len(hidden_ND), len(weight_VD), form)
    for start in range(0, len(hidden_ND), width):
        hidden_BD, targets_B, share_B = (array[start : start + width] for array in (hidden_ND, targets_N, share_N))
        logits_BV = products.linear(hidden_BD, weight_VD, bias_V)
        highest_B1 = logits_BV.amax(dim=1, keepdim=True)
        target_B = logits_BV.gather(1, targets_B[:, None])[:, 0]
        exp_BV = logits_BV.sub_(highest_B1).exp_()
        sum_B = exp_BV.sum(dim=1)
        total += torch.dot(highest_B1[:, 0] + sum_B.log() - target_B, share_B)
        scale_B1 = (share_B / sum_B)[:, None]
        dexp_BD = products.product(exp_BV, weight_VD)
        dhidden_ND[start : start + width] = dexp_BD * scale_B1 - weight_VD[targets_B] * share_B[:, None]
        first = start == 0
        products.add_weight_gradient(dweight_VD, exp_BV, hidden_BD * scale_B1, first=first)
        dbias_V.addmv_(exp_BV.T, scale_B1[:, 0], beta=float(not first))
        del logits_BV, exp_BV  # so that only one block is in memory at a time
    dweight_VD.index_add_(0, targets_N, hidden_ND * share_N[:, None], alpha=-1)
    dbias_V.index_add_(0, targets_N, share_N, alpha=-1)
    return total, (dhidden_ND, dweight_VD, dbias_V)


class _ByTokens(torch.autograd.Function):
    """`_differentiated`, with the gradients kept from the forward pass."""

    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, bias_V, targets_N, share_N, form: Form) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, share_N)
        ctx.form = form
        total, ctx.gradients = _differentiated(hidden_ND, weight_VD, bias_V, targets_N, share_N, form)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, dtotal):  # type: ignore[override]
        gradients, ctx.gradients = ctx.gradients, None  # autograd need not copy gradients without other references
        if gradients is None:  # a second backward pass through the same graph
            hidden_ND, weight_VD, bias_V, targets_N, share_N = ctx.saved_tensors
            gradients = _differentiated(hidden_ND, weight_VD, bias_V, targets_N, share_N, ctx.form)[1]
        if dtotal != 1:
            for gradient in gradients:
                gradient *= dtotal
        return (*gradients, None, None, None)


class FusedSoftmax(FullSoftmax):
    """Full softmax by blocks of tokens, whose gradients are computed with their losses, or by blocks of words, whose
    logits are computed in the forward and again in the backward pass.

    Parameters: `weight` (V, D), `bias` (V,), as in full softmax.
    """

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        dtype = TORCH_DTYPES[spec.dtype]
        kernels = _BY_KERNELS if availability.known(spec.dim, dtype) else ()
        # Blocks of tokens sum the gradient with respect to the words in the words' own dtype.
        by_tokens = (blocks.TOKEN_FORM,) if blocks.TOKEN_FORM.supports(spec.dtype, spec.dim) else ()
        operations = (*by_tokens, *blocks.WORD_FORMS)
        if cpp_kernels.fuses(dtype):
            operations = cpp.with_fused_softmax(operations, spec.dim)
        return (*kernels, *operations)

    @property
    def form(self) -> Form:
        return self._requested or self._preferred_form()

    def _runs(self, form: Form, parameter: Tensor) -> bool:
        return form != CPP or cpp_kernels.fuses_on(parameter)

    def _reduced(
        self, hidden_ND: Tensor, targets_N: Tensor, padding_N: Tensor | None, *, mean: bool, **extra: Tensor
    ) -> Tensor:
        differentiates = torch.is_grad_enabled() and hidden_ND.requires_grad and self.weight.requires_grad
        if (
            is_tracing()
            or not blocks.are_of_tokens(self.form)
            or not differentiates
            or torch.is_autocast_enabled(hidden_ND.device.type)
        ):
            return super()._reduced(hidden_ND, targets_N, padding_N, mean=mean, **extra)
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        cast_ND, tokens = hidden_ND.to(self.weight.dtype), len(hidden_ND)
        if padding_N is None:
            share_N = torch.full((tokens,), 1 / tokens if mean else 1.0, dtype=dtype, device=hidden_ND.device)
        else:
            share_N = (~padding_N).to(dtype) / counted(padding_N, mean=mean)
        return _ByTokens.apply(cast_ND, self.weight, self._bias_V, targets_N, share_N, self.form)  # type: ignore[return-value]

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        if isinstance(hidden_ND.size(0), torch.SymInt):  # a trace for any batch size has no number of blocks
            return super()._nll(hidden_ND, targets_N)
        return _FusedNll.apply(hidden_ND, self.weight, self._bias_V, targets_N, self.form, None)  # type: ignore[return-value]

    def nll_over(self, ranks: Ranks, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return _FusedNll.apply(hidden_ND, self.weight, self._bias_V, targets_N, self.form, ranks)  # type: ignore[return-value]

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        if self._fits_in_one(hidden_ND):
            return super()._search(hidden_ND, k)
        values_NK, ids_NK, log_sum_N = self.best_logits(hidden_ND, k)
        return values_NK - log_sum_N[:, None], ids_NK, torch.ones_like(log_sum_N)

    def best_logits(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        if self._fits_in_one(hidden_ND):
            return super().best_logits(hidden_ND, k)
        cast_ND = hidden_ND.to(self.weight.dtype)
        log_sum_N = at_least_float32(cast_ND.new_full((len(cast_ND),), -torch.inf))
        values_NK = log_sum_N.new_empty(len(cast_ND), 0)
        ids_NK = torch.empty(values_NK.shape, dtype=torch.int64, device=cast_ND.device)
        for block in _blocks(len(cast_ND), len(self.weight), self.form):
            logits_NB = _logits(cast_ND, self.weight, self._bias_V, block)
            values, ids = exact_topk(logits_NB, min(k, logits_NB.shape[1]))
            # Among equal values, lower ids come first on either side, and a stable sort keeps them first.
            values_NK, order_NK = torch.cat([values_NK, values], dim=1).sort(dim=1, descending=True, stable=True)
            ids_NK = torch.cat([ids_NK, ids + block.start], dim=1).gather(1, order_NK[:, :k])
            values_NK = values_NK[:, :k]
            log_sum_N = _add_block(log_sum_N, logits_NB)
        return values_NK, ids_NK, log_sum_N

    def log_sums(self, hidden_ND: Tensor) -> Tensor:
        if self._fits_in_one(hidden_ND):
            return super().log_sums(hidden_ND)
        cast_ND = hidden_ND.to(self.weight.dtype)
        ranges = _blocks(len(cast_ND), len(self.weight), self.form)
        log_sum_NB = [_log_sum(_logits(cast_ND, self.weight, self._bias_V, block)) for block in ranges]
        return torch.stack(log_sum_NB, dim=1).logsumexp(dim=1)

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words: draw a block by its share of the sum, then a word of it, whose logits are recomputed."""
        if self._fits_in_one(hidden_ND):
            return super()._sample(hidden_ND, uniforms_NU)
        cast_ND, uniforms_N = hidden_ND.to(self.weight.dtype), uniforms_NU[:, 0]
        ranges = list(_blocks(len(cast_ND), len(self.weight), self.form))
        log_sum_NB = torch.stack([_log_sum(_logits(cast_ND, self.weight, self._bias_V, b)) for b in ranges], dim=1)
        block_N, left_N = drawn_part(log_sum_NB, uniforms_N)
        word_N = torch.empty_like(block_N)
        for number, block in enumerate(ranges):
            rows_R = (block_N == number).nonzero()[:, 0]
            logits_RB = _logits(cast_ND[rows_R], self.weight, self._bias_V, block)
            word_N[rows_R] = block.start + draw(logits_RB.softmax(dim=1), left_N[rows_R])
        return word_N

    def _fits_in_one(self, hidden_ND: Tensor) -> bool:
        """Return whether one block holds all logits, or a trace for any batch size has no number of blocks."""
        if isinstance(hidden_ND.size(0), torch.SymInt):
            return True
        return blocks.width(len(hidden_ND), len(self.weight), self.form) == len(self.weight)


LAYER = FusedSoftmax
