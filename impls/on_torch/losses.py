"""Losses of tokens and their reduction to a sum or a mean."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.tensors import at_least_float32
from vocabench.impls.on_torch.triton import availability

# Elements of half precision: 16 bytes. A GPU's fastest products need rows that are a multiple of this.
_ALIGNED = 8


def nll_of_products(
    hidden_ND: Tensor, weight_CD: Tensor, bias_C: Tensor | None, targets_N: Tensor, *, kernels: bool = False
) -> Tensor:
    """Return the (N,) negative log-likelihoods of the targets under the logits h W^T + b, at least in float32.

    Args:
        hidden_ND: Hidden vectors.
        weight_CD: A row for each class.
        bias_C: Biases, or None.
        targets_N: Class ids.
        kernels: Whether the C++ kernels may compute the products, as in `products.linear`.
    """
    if not availability.runs_on(weight_CD):
        logits_NC = products.linear(hidden_ND, weight_CD, bias_C, kernels=kernels)
        return F.cross_entropy(at_least_float32(logits_NC), targets_N, reduction="none")
    from vocabench.impls.on_torch.triton import softmax_kernels  # imports Triton, which may not be installed

    classes = len(weight_CD)
    if weight_CD.dtype.itemsize == 2 and classes % _ALIGNED:
        weight_CD, bias_C = _aligned(weight_CD), None if bias_C is None else _aligned(bias_C)
    return softmax_kernels.nll(products.linear(hidden_ND, weight_CD, bias_C), targets_N, classes)


def _aligned(by_class: Tensor) -> Tensor:
    """Append rows of zeros, so that the rows of the logits are aligned.

    This uses `cat` because its gradient is a slice, whereas the gradient of `F.pad` is a copy.
    """
    return torch.cat([by_class, by_class.new_zeros(-len(by_class) % _ALIGNED, *by_class.shape[1:])])


def reduced(losses_N: Tensor, padding_N: Tensor | None, *, mean: bool) -> Tensor:
    """Return the sum or the mean of all losses that are not padding; `padding_N` is None if none is."""
    if padding_N is None:
        return losses_N.mean() if mean else losses_N.sum()
    if losses_N.dtype == torch.float32 and availability.runs_on(losses_N):
        from vocabench.impls.on_torch.triton import softmax_kernels

        return softmax_kernels.reduced(losses_N, padding_N, mean)
    return losses_N.masked_fill(padding_N, 0.0).sum() / counted(padding_N, mean=mean)


def counted(padding_N: Tensor, *, mean: bool) -> Tensor | int:
    """Return the divisor of a sum of losses: the number of tokens, at least 1, for a mean, and 1 for a sum."""
    return (~padding_N).sum().clamp(min=1) if mean else 1


def weighted(losses_N: Tensor, weight_N: Tensor, padding_N: Tensor | None, reduction: str) -> Tensor:
    """Return losses times weights, their sum, or their sum divided by that of the weights: 0 if the latter is 0.

    Args:
        losses_N: Losses, 0 at padding.
        weight_N: The weight of each token, arbitrary at padding.
        padding_N: True at padding; None if there is none.
        reduction: "mean", "sum" or "none".
    """
    weight_N = weight_N.to(losses_N.dtype)
    if padding_N is not None:
        weight_N = weight_N.masked_fill(padding_N, 0.0)
    losses_N = losses_N * weight_N
    if reduction == "none":
        return losses_N
    total = losses_N.sum()
    if reduction == "sum":
        return total
    weights = weight_N.sum()
    is_zero = weights == 0
    return (total / weights.masked_fill(is_zero, 1.0)).masked_fill(is_zero, 0.0)
