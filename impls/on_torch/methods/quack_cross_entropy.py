"""QuACK's linear layer and cross-entropy. See `impls/on_numpy/methods/quack_cross_entropy.py`."""

from __future__ import annotations

from torch import Tensor

from vocabench.impls.on_torch.peers import KernelSoftmax

_ALIGNMENT = 8  # the chunked loss loads blocks of this many elements along each axis


class QuackCrossEntropy(KernelSoftmax):
    """`quack.linear_cross_entropy`: by chunks of the batch, or from all logits where the chunked loss does not apply.

    The chunked loss takes no bias, and sizes that are multiples of 8.

    Parameters: `weight` (V, D), `bias` (V,), as in full softmax.
    """

    package = "quack"
    install = distribution = "quack-kernels"
    dtypes = ("bfloat16",)  # the products of its chunked loss have no float32

    def kernel(self, hidden_ND: Tensor, targets_N: Tensor, ignore_index: int) -> Tensor:
        from quack.linear_cross_entropy import (  # type: ignore[import-not-found]
            chunked_linear_cross_entropy,
            linear_cross_entropy_func,
        )

        settings = {"ignore_index": ignore_index, "reduction": "sum"}
        if self.bias is None and not any(size % _ALIGNMENT for size in (*hidden_ND.shape, *self.weight.shape)):
            return chunked_linear_cross_entropy(hidden_ND, self.weight, targets_N, **settings)
        return linear_cross_entropy_func(hidden_ND, self.weight, self.bias, targets_N, **settings)


LAYER = QuackCrossEntropy
