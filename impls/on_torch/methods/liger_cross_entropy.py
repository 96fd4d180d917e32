"""Liger Kernel's fused linear layer and cross-entropy. See `impls/on_numpy/methods/liger_cross_entropy.py`."""

from __future__ import annotations

from torch import Tensor

from vocabench.impls.on_torch.peers import KernelSoftmax


class LigerCrossEntropy(KernelSoftmax):
    """`liger_kernel.transformers.LigerFusedLinearCrossEntropyLoss`, which processes the batch in chunks.

    Parameters: `weight` (V, D), `bias` (V,), as in full softmax.
    """

    package = "liger_kernel"
    install = "liger-kernel"
    dtypes = ("float32", "tf32", "bfloat16")  # its sums are float32

    def kernel(self, hidden_ND: Tensor, targets_N: Tensor, ignore_index: int) -> Tensor:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss  # type: ignore[import-not-found]

        loss = LigerFusedLinearCrossEntropyLoss(ignore_index=ignore_index, reduction="sum")
        return loss(self.weight, hidden_ND, targets_N, self.bias)


LAYER = LigerCrossEntropy
