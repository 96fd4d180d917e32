"""Apple's Cut Cross-Entropy. See `impls/on_numpy/methods/cut_cross_entropy.py`."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabench.impls.on_torch.peers import KernelSoftmax

_COLUMNS = 16  # appended for the bias, so that rows remain multiples of 32 bytes


class CutCrossEntropy(KernelSoftmax):
    """`cut_cross_entropy.linear_cross_entropy`, whose logits stay in on-chip memory.

    For releases without a bias (25.1), the bias becomes one more column of the weights, multiplied with 1.

    Parameters: `weight` (V, D), `bias` (V,), as in full softmax.
    """

    package = "cut_cross_entropy"
    install = '"cut-cross-entropy @ git+https://github.com/apple/ml-cross-entropy.git"'
    dtypes = ("bfloat16",)  # required by its backward pass

    def kernel(self, hidden_ND: Tensor, targets_N: Tensor, ignore_index: int) -> Tensor:
        from cut_cross_entropy import linear_cross_entropy  # type: ignore[import-not-found]

        settings = {"ignore_index": ignore_index, "reduction": "sum", "impl": self.spec.options["impl"]}
        if "bias" in inspect.signature(linear_cross_entropy).parameters:
            return linear_cross_entropy(hidden_ND, self.weight, targets_N, bias=self.bias, **settings)
        if self.bias is None:
            return linear_cross_entropy(hidden_ND, self.weight, targets_N, **settings)
        weight_VE = F.pad(torch.cat([self.weight, self.bias[:, None]], dim=1), (0, _COLUMNS - 1))
        hidden_NE = F.pad(F.pad(hidden_ND, (0, 1), value=1.0), (0, _COLUMNS - 1))
        return linear_cross_entropy(hidden_NE, weight_VE, targets_N, **settings)


LAYER = CutCrossEntropy
