"""PyTorch's own fused linear layer and cross-entropy. See `impls/on_numpy/linear_cross_entropy.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from impls.errors import BadInput
from impls.on_torch._layer import Reduction, at_least_float32
from impls.on_torch.full_softmax import FullSoftmax
from impls.spec import LayerSpec


class LinearCrossEntropy(FullSoftmax):
    """`torch.nn.functional.linear_cross_entropy`, by chunks of the batch wherever a single number is asked for.

    Parameters: `weight` (V, D), `bias` (V,), as of full softmax.

    Raises:
        BadInput: This PyTorch does not have it.
    """

    def __init__(self, spec: LayerSpec) -> None:
        if not hasattr(F, "linear_cross_entropy"):
            raise BadInput(f"linear_cross_entropy in torch {torch.__version__}: allowed: from torch 2.13 on")
        super().__init__(spec)

    def forward(
        self, hidden_ND: Tensor, targets_N: Tensor, *, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> Tensor:
        if reduction == "none":  # which PyTorch computes without chunks
            return super().forward(hidden_ND, targets_N, ignore_index=ignore_index, reduction=reduction)
        total = F.linear_cross_entropy(
            hidden_ND.to(self.weight.dtype),
            self.weight,
            targets_N,
            linear_bias=self.bias,
            reduction="sum",  # PyTorch's mean over padding alone is not a number
            ignore_index=ignore_index,
            options=nn.LinearCrossEntropyOptions(),
        )
        total = at_least_float32(total)
        return total if reduction == "sum" else total / (targets_N != ignore_index).sum().clamp(min=1)

    def formulation(self) -> str:
        return "torch.nn.functional.linear_cross_entropy, chunks of the batch"


LAYER = LinearCrossEntropy
