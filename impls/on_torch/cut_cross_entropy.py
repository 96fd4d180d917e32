"""Apple's Cut Cross-Entropy. See `impls/on_numpy/cut_cross_entropy.py`."""

from __future__ import annotations

from torch import Tensor

from impls.on_torch._kernels import KernelSoftmax


class CutCrossEntropy(KernelSoftmax):
    """`cut_cross_entropy.linear_cross_entropy`, whose logits stay in the chip's own memory.

    Parameters: `weight` (V, D), `bias` (V,), as of full softmax.
    """

    package = "cut_cross_entropy"
    install = '"cut-cross-entropy @ git+https://github.com/apple/ml-cross-entropy.git"'
    dtypes = ("bfloat16",)  # that its backward pass takes

    def kernel(self, hidden_ND: Tensor, targets_N: Tensor, ignore_index: int) -> Tensor:
        from cut_cross_entropy import linear_cross_entropy  # type: ignore[import-not-found]

        return linear_cross_entropy(
            hidden_ND,
            self.weight,
            targets_N,
            bias=self.bias,
            ignore_index=ignore_index,
            reduction="sum",
            impl=self.spec.options["impl"],
        )


LAYER = CutCrossEntropy
