"""Full softmax with a summed loss from one call of PyTorch, compiled code or another package."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from vocabench.impls.on_torch.losses import counted
from vocabench.impls.on_torch.methods.full_softmax import FullSoftmax
from vocabench.impls.on_torch.tensors import at_least_float32

_IGNORED = -100  # marks padding in calls of other code


class SummedSoftmax(FullSoftmax):
    """Full softmax that uses the call for sums and means of losses, and is plain full softmax otherwise.

    Parameters: `weight` (V, D), `bias` (V,), as in full softmax.
    """

    @abstractmethod
    def total(self, hidden_ND: Tensor, targets_N: Tensor, ignore_index: int) -> Tensor:
        """Return the sum of the negative log-likelihoods without padding; `hidden_ND` has the dtype of the weights."""

    def _reduced(
        self, hidden_ND: Tensor, targets_N: Tensor, padding_N: Tensor | None, *, mean: bool, **extra: Tensor
    ) -> Tensor:
        if padding_N is not None:
            targets_N = targets_N.masked_fill(padding_N, _IGNORED)
        # The sum, because their mean over padding alone would be NaN.
        total = at_least_float32(self.total(hidden_ND.to(self.weight.dtype), targets_N, _IGNORED))
        tokens = targets_N.size(0) if padding_N is None else counted(padding_N, mean=True)
        return total / tokens if mean else total
