"""PyTorch's own adaptive softmax. See `impls/on_numpy/methods/adaptive_log_softmax.py`."""

from __future__ import annotations

import re

import numpy as np
import torch
from torch import Tensor, nn

from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, Tensors, at_least_float32
from vocabench.impls.on_torch.tracing import is_tracing
from vocabench.impls.spec import LayerSpec


class AdaptiveLogSoftmax(OutputLayer):
    """`torch.nn.AdaptiveLogSoftmaxWithLoss`, for words in any order.

    Parameters: `inner`, PyTorch's module over words by falling count. Buffer: `rank` (V,) of each word in that order.
    """

    rank: Tensor

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        cutoffs = spec.structure["cutoffs"].tolist()[:-1]
        dtype = TORCH_DTYPES[spec.dtype]
        self.inner = nn.AdaptiveLogSoftmaxWithLoss(spec.dim, spec.vocab, cutoffs, div_value=1.0, dtype=dtype)
        # PyTorch would round the width of a narrow tail down to 0; ours is at least 1.
        shapes = spec.parameter_shapes()
        for tail in range(len(cutoffs)):
            parts = (shapes[f"tail{tail}_{kind}"] for kind in ("projection", "weight"))
            linear = [nn.Linear(width, rows, bias=False, dtype=dtype) for rows, width in parts]
            self.inner.tail[tail] = nn.Sequential(*linear)
        self.register_buffer("rank", torch.from_numpy(np.argsort(spec.structure["order"])), persistent=False)

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        if is_tracing():  # PyTorch's module selects the tokens of each tail, which a trace cannot do
            return -self._log_probs(hidden_ND).gather(1, targets_N[:, None])[:, 0]
        cast_ND = hidden_ND.to(self.inner.head.weight.dtype)
        with torch.autocast(hidden_ND.device.type, enabled=False):  # it would mix dtypes in PyTorch's module
            return -at_least_float32(self.inner(cast_ND, self.rank[targets_N]).output)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        cast_ND = hidden_ND.to(self.inner.head.weight.dtype)
        return at_least_float32(self.inner.log_prob(cast_ND))[:, self.rank]

    def to_canonical(self, tensors: Tensors) -> Tensors:
        return {_canonical(name): value for name, value in tensors.items()}

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return {name: tensors[_canonical(name)] for name, _ in self.named_parameters()}

    def formulation(self) -> str:
        return "torch.nn.AdaptiveLogSoftmaxWithLoss"


def _canonical(name: str) -> str:
    if name == "inner.head.weight":
        return "head_weight"
    match = re.fullmatch(r"inner\.tail\.(\d+)\.([01])\.weight", name)
    assert match is not None
    return f"tail{match[1]}_{('projection', 'weight')[int(match[2])]}"


LAYER = AdaptiveLogSoftmax
