"""Full softmax in PyTorch: one product and the fused cross-entropy. See `impls/on_numpy/full_softmax.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from impls.on_torch import _products
from impls.on_torch._layer import TORCH_DTYPES, OutputLayer, at_least_float32
from impls.spec import LayerSpec


class FullSoftmax(OutputLayer):
    """log P(w | h) = h.W_w + b_w - logsumexp(h W^T + b).

    Parameters: `weight` (V, D), `bias` (V,).
    """

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        dtype = TORCH_DTYPES[spec.dtype]
        self.weight = nn.Parameter(torch.empty(spec.vocab, spec.dim, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(spec.vocab, dtype=dtype))

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        return at_least_float32(_products.linear(hidden_ND, self.weight, self.bias))

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return F.cross_entropy(self._logits(hidden_ND), targets_N, reduction="none")

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        return F.log_softmax(self._logits(hidden_ND), dim=1)


LAYER = FullSoftmax
