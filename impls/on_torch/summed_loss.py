"""Full softmax with a summed loss from one call of PyTorch, compiled code or another package."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from vocabench.impls.on_torch.layer import Reduction, at_least_float32
from vocabench.impls.on_torch.methods.full_softmax import FullSoftmax


class SummedSoftmax(FullSoftmax):
    """Full softmax that uses the call for sums and means of losses, and is plain full softmax otherwise.

    Parameters: `weight` (V, D), `bias` (V,), as in full softmax.
    """

    @abstractmethod
    def total(self, hidden_ND: Tensor, targets_N: Tensor, ignore_index: int) -> Tensor:
        """Return the sum of the negative log-likelihoods without padding; `hidden_ND` has the dtype of the weights."""

    def forward(
        self, hidden_ND: Tensor, targets_N: Tensor, *, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> Tensor:
        hidden_ND = hidden_ND.to(self.weight.dtype)
        if reduction == "none":  # PyTorch computes it without chunks, and some kernels cannot differentiate it
            return super().forward(hidden_ND, targets_N, ignore_index=ignore_index, reduction=reduction)
        # The sum, because their mean over padding alone would be NaN.
        total = at_least_float32(self.total(hidden_ND, targets_N, ignore_index))
        return total if reduction == "sum" else total / (targets_N != ignore_index).sum().clamp(min=1)
