"""Full softmax whose loss somebody else's code computes in one call: PyTorch's own, compiled, or another package's."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from vocabench.impls.on_torch.layer import Reduction, at_least_float32
from vocabench.impls.on_torch.methods.full_softmax import FullSoftmax


class SummedSoftmax(FullSoftmax):
    """Full softmax by that call wherever a single number is asked for; all else is full softmax's.

    Parameters: `weight` (V, D), `bias` (V,), as of full softmax.
    """

    @abstractmethod
    def total(self, hidden_ND: Tensor, targets_N: Tensor, ignore_index: int) -> Tensor:
        """Sum of the negative log-likelihoods of all tokens but padding; `hidden_ND` has the dtype of the weights."""

    def forward(
        self, hidden_ND: Tensor, targets_N: Tensor, *, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> Tensor:
        hidden_ND = hidden_ND.to(self.weight.dtype)
        if reduction == "none":  # which PyTorch computes without chunks, and not every kernel differentiates
            return super().forward(hidden_ND, targets_N, ignore_index=ignore_index, reduction=reduction)
        # The sum, because their mean over padding alone is not a number.
        total = at_least_float32(self.total(hidden_ND, targets_N, ignore_index))
        return total if reduction == "sum" else total / (targets_N != ignore_index).sum().clamp(min=1)
