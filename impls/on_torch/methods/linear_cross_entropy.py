"""PyTorch's own fused linear layer and cross-entropy. See `impls/on_numpy/methods/linear_cross_entropy.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls.errors import Unsupported
from vocabench.impls.on_torch.methods.full_softmax import FullSoftmax
from vocabench.impls.on_torch.ops.once import differentiated_once
from vocabench.impls.on_torch.summed_loss import SummedSoftmax
from vocabench.impls.on_torch.tracing import is_tracing
from vocabench.impls.spec import LayerSpec


class LinearCrossEntropy(SummedSoftmax):
    """`torch.nn.functional.linear_cross_entropy`, which processes the batch in chunks; full softmax while it is traced.

    Parameters: `weight` (V, D), `bias` (V,), as in full softmax.

    Raises:
        Unsupported: This PyTorch does not have it.
    """

    def __init__(self, spec: LayerSpec) -> None:
        if not hasattr(F, "linear_cross_entropy"):
            raise Unsupported(f"linear_cross_entropy in torch {torch.__version__}: allowed: from torch 2.13 on")
        super().__init__(spec)

    def _reduced(
        self, hidden_ND: Tensor, targets_N: Tensor, padding_N: Tensor | None, *, mean: bool, **extra: Tensor
    ) -> Tensor:
        if is_tracing():  # PyTorch's function warns in Python, which torch.compile cannot trace
            return FullSoftmax._reduced(self, hidden_ND, targets_N, padding_N, mean=mean, **extra)
        return super()._reduced(hidden_ND, targets_N, padding_N, mean=mean, **extra)

    def total(self, hidden_ND: Tensor, targets_N: Tensor, ignore_index: int) -> Tensor:
        return F.linear_cross_entropy(
            differentiated_once(hidden_ND),
            differentiated_once(self.weight),
            targets_N,
            linear_bias=None if self.bias is None else differentiated_once(self.bias),
            reduction="sum",
            ignore_index=ignore_index,
            options=nn.LinearCrossEntropyOptions(),
        )

    def formulation(self) -> str:
        return "torch.nn.functional.linear_cross_entropy, chunks of the batch"


LAYER = LinearCrossEntropy
