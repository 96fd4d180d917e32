"""Full softmax that keeps only the exponentials, in PyTorch. See `impls/on_numpy/methods/inplace_softmax.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from vocabench.impls.on_torch.methods.full_softmax import FullSoftmax
from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.ops.once import once_differentiable
from vocabench.impls.on_torch.parallel.ranks import Ranks, entries, own_entries


class _InplaceNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, bias_V, targets_N, ranks: Ranks | None) -> Tensor:  # type: ignore[override]
        logits_NV = products.linear(hidden_ND, weight_VD, bias_V)
        highest_N1 = logits_NV.amax(dim=1, keepdim=True)
        pick = own_entries if ranks is not None else entries
        target_N = pick(logits_NV, targets_N)
        exp_NV = logits_NV.sub_(highest_N1).exp_()
        sum_N, highest_N = exp_NV.sum(dim=1), highest_N1[:, 0]
        if ranks is None:
            nll_N = sum_N.log() + (highest_N - target_N)
        else:
            log_sum_N, target_N = ranks.joined(sum_N.log() + highest_N, target_N)
            # The sum over all ranks, relative to the highest logit of this one.
            sum_N, nll_N = (log_sum_N - highest_N).exp_(), log_sum_N - target_N
        ctx.ranks = ranks
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, exp_NV, sum_N)
        return nll_N

    @staticmethod
    @once_differentiable
    def backward(ctx, dnll_N):  # type: ignore[override]
        hidden_ND, weight_VD, targets_N, exp_NV, sum_N = ctx.saved_tensors
        scale_N1, ranks = (dnll_N / sum_N)[:, None], ctx.ranks
        if ranks is not None:
            dnll_N, targets_N = dnll_N.where(targets_N >= 0, 0.0), targets_N.clamp(min=0)
        dnll_N1 = dnll_N[:, None]
        dhidden_ND = products.product(exp_NV, weight_VD).mul_(scale_N1)
        dhidden_ND -= weight_VD[targets_N] * dnll_N1
        dweight_VD = products.weight_gradient(exp_NV, hidden_ND * scale_N1)
        dweight_VD.index_add_(0, targets_N, hidden_ND * dnll_N1, alpha=-1)
        dbias_V = (scale_N1[:, 0] @ exp_NV).index_add_(0, targets_N, dnll_N, alpha=-1)
        if ranks is not None:
            ranks.add_up(dhidden_ND)
        return dhidden_ND, dweight_VD, dbias_V, None, None


class InplaceSoftmax(FullSoftmax):
    """Full softmax whose exponentials overwrite the logits and are kept for the gradient.

    In half precision and under autocast it is the same as full softmax.

    Parameters: `weight` (V, D), `bias` (V,), as in full softmax.
    """

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        if not self._keeps_exponentials():
            return super()._nll(hidden_ND, targets_N)
        return self._kept_nll(hidden_ND, targets_N, None)

    def nll_over(self, ranks: Ranks, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        if not self._keeps_exponentials():
            return super().nll_over(ranks, hidden_ND, targets_N)
        return self._kept_nll(hidden_ND, targets_N, ranks)

    def _keeps_exponentials(self) -> bool:
        half = self.weight.dtype not in (torch.float32, torch.float64)
        return not half and not torch.is_autocast_enabled(self.weight.device.type)

    def _kept_nll(self, hidden_ND: Tensor, targets_N: Tensor, ranks: Ranks | None) -> Tensor:
        hidden_ND = hidden_ND.to(self.weight.dtype)
        return _InplaceNll.apply(hidden_ND, self.weight, self._bias_V, targets_N, ranks)  # type: ignore[return-value]

    def formulation(self) -> str:
        return "exponentials kept for the gradient, in the place of the logits"


LAYER = InplaceSoftmax
