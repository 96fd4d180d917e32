"""Products of float32 matrices on a CPU, computed by the faster of PyTorch's two libraries, MKL and oneDNN.

PyTorch uses MKL, which leaves half of the vector units of an AMD processor with AVX-512 idle. On an EPYC of 2024,
oneDNN computes h W^T and both of its gradients 2.1 to 2.3 times as fast. A product of few vectors takes as long as
reading the words; there, PyTorch's order of the factors takes twice as long as the other one. Neither holds on an Intel
Xeon. A process therefore measures both once, in less than a tenth of a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabench.impls import cpp
from vocabench.impls.on_torch.ops import cpp_kernels
from vocabench.impls.on_torch.tracing import is_tracing

FEW_VECTORS = 12  # vectors up to which the order of the factors matters, as in `words_first`
FEWEST = 4  # vectors up to which MKL, too, reads words at the speed of the memory
# Multiply-adds from which on oneDNN is used: it compiles a program for each new size, in a millisecond, and keeps it.
_LARGE = 2**25
_WORDS = 4096  # words whose gradients stay in cache until they are added
# MKL takes up to ten times as long for the gradient with respect to weights of so few columns as in the other order.
_NARROW = 8
_MANY = 2**18  # entries of the scores from which on this matters
_TRIALS = 16
_GAIN = 1.2  # oneDNN must be so many times as fast, so that noise does not decide


def linear(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None = None, *, kernels: bool = False) -> Tensor:
    """Return h W^T + b (N, V), as `F.linear` does.

    It is `F.linear` for anything but float32 on a CPU, under autocast and in a torch.compile trace.

    Args:
        hidden_ND: Hidden vectors h.
        weight_VD: Weights W.
        bias_V: Biases b, or None.
        kernels: Whether the C++ kernels may compute the product, on processors with a matrix unit, and its gradient
            with respect to W, if W has few rows.
    """
    if is_tracing():
        return F.linear(hidden_ND, weight_VD, bias_V)
    differentiated = torch.is_grad_enabled()
    if not differentiated and len(hidden_ND) <= FEW_VECTORS and _is_plain(hidden_ND, weight_VD):
        scores_NV = of_few(hidden_ND, weight_VD)
        return scores_NV if bias_V is None else scores_NV + bias_V
    if kernels and _is_kernels(hidden_ND, weight_VD):
        return _Linear.apply(hidden_ND, weight_VD, bias_V, True)  # type: ignore[return-value]
    onednn = is_onednns(hidden_ND, weight_VD)
    if differentiated and (onednn or _is_narrow(weight_VD, len(hidden_ND) * len(weight_VD))):
        return _Linear.apply(hidden_ND, weight_VD, bias_V, kernels)  # type: ignore[return-value]
    return onednn_linear(hidden_ND, weight_VD, bias_V) if onednn else F.linear(hidden_ND, weight_VD, bias_V)


def product(left_NV: Tensor, right_VD: Tensor, *, kernels: bool = False) -> Tensor:
    """Return the (N, D) product of two matrices; `kernels` as in `linear`."""
    return linear(left_NV, right_VD.T, kernels=kernels)


def add_product(total_ND: Tensor, left_NV: Tensor, right_VD: Tensor) -> None:
    """Add a `product` to `total_ND` in place, without gradients."""
    if total_ND.dtype != right_VD.dtype or is_onednns(left_NV, right_VD.T):
        total_ND += product(left_NV, right_VD)
    else:
        total_ND.addmm_(left_NV, right_VD)


def weight_gradient(dscores_NV: Tensor, hidden_ND: Tensor, *, kernels: bool = False) -> Tensor:
    """Return the (V, D) gradient of h W^T with respect to W; `kernels` as in `linear`."""
    dscores_VN, hidden_DN = dscores_NV.T, hidden_ND.T
    if kernels and _is_kernels(dscores_VN, hidden_DN):
        return linear(dscores_VN, hidden_DN, kernels=True)
    if kernels and _is_kernels_gradient(dscores_NV, hidden_ND):
        return cpp_kernels.weight_gradient(dscores_NV, hidden_ND)
    if not is_onednns(hidden_DN, dscores_VN):
        if _is_narrow(hidden_ND, dscores_NV.numel()):
            return (hidden_DN @ dscores_NV).T.contiguous()
        return dscores_VN @ hidden_ND
    if len(dscores_VN) <= len(hidden_DN):  # oneDNN copies the first factor
        return linear(dscores_VN, hidden_DN)
    return linear(hidden_DN, dscores_VN).T.contiguous()


def add_weight_gradient(total_VD: Tensor, dscores_NV: Tensor, hidden_ND: Tensor, *, first: bool) -> None:
    """Add a `weight_gradient` to `total_VD` in place, or write the `first` one, without another array of its size."""
    if not is_onednns(hidden_ND.T, dscores_NV.T):
        torch.addmm(total_VD, dscores_NV.T, hidden_ND, beta=float(not first), out=total_VD)
        return
    for total_SD, dscores_NS in zip(total_VD.split(_WORDS), dscores_NV.split(_WORDS, dim=1), strict=True):
        added_SD = onednn_linear(dscores_NS.contiguous().T, hidden_ND.T)
        _ = total_SD.copy_(added_SD) if first else total_SD.add_(added_SD)


class _Linear(torch.autograd.Function):
    """A product whose gradients are computed by the fastest library too, differentiable any number of times."""

    generate_vmap_rule = True

    @staticmethod
    def forward(hidden_ND, weight_VD, bias_V, kernels) -> Tensor:
        if not (kernels and _is_kernels(hidden_ND, weight_VD)):
            linear = onednn_linear if is_onednns(hidden_ND, weight_VD) else F.linear
            return linear(hidden_ND, weight_VD, bias_V)
        scores_NV = cpp_kernels.matrix_product(hidden_ND, weight_VD)
        return scores_NV if bias_V is None else scores_NV.add_(bias_V)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.kernels = inputs[3]

    @staticmethod
    def backward(ctx, dscores_NV):  # type: ignore[override]
        hidden_ND, weight_VD = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias, _ = ctx.needs_input_grad
        return (
            product(dscores_NV, weight_VD, kernels=ctx.kernels) if needs_hidden else None,
            weight_gradient(dscores_NV, hidden_ND, kernels=ctx.kernels) if needs_weight else None,
            dscores_NV.sum(dim=0) if needs_bias else None,
            None,
        )


def _is_kernels(left_ND: Tensor, right_VD: Tensor) -> bool:
    """Return whether the C++ kernels compute `left_ND @ right_VD.T` fastest."""
    large = not is_tracing() and cpp.is_worth_splitting(len(left_ND), left_ND.shape[1], len(right_VD))
    return large and _is_plain(left_ND, right_VD) and cpp_kernels.multiplies(left_ND.dtype)


def _is_kernels_gradient(dscores_NV: Tensor, hidden_ND: Tensor) -> bool:
    """Return whether the C++ kernels compute a gradient with respect to weights fastest, outside of autograd."""
    plain = not torch.is_grad_enabled() and _is_plain(dscores_NV, hidden_ND)
    sizes = len(dscores_NV), dscores_NV.shape[1], hidden_ND.shape[1]
    return plain and cpp.differentiates_fastest(*sizes) and cpp_kernels.known(hidden_ND.dtype)


def _is_narrow(vectors_XD: Tensor, scores: int) -> bool:
    """Return whether MKL is slow for the gradient with respect to weights as wide as these vectors.

    Args:
        vectors_XD: The hidden vectors or the weights.
        scores: Number of their products.
    """
    return vectors_XD.shape[1] <= _NARROW and scores >= _MANY and _is_plain(vectors_XD, vectors_XD)


def onednn_linear(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None = None) -> Tensor:
    """Return h W^T + b (N, V), computed by oneDNN; it has no gradient."""
    return torch.ops.mkldnn._linear_pointwise(hidden_ND, weight_VD, bias_V, "none", [], "")


def is_onednns(left_ND: Tensor, right_VD: Tensor) -> bool:
    """Return whether oneDNN computes `left_ND @ right_VD.T` fastest. Matrices with gaps have no fast program."""
    return (
        not is_tracing()
        and left_ND.numel() * len(right_VD) >= _LARGE
        and _is_plain(left_ND, right_VD)
        and _has_no_gaps(left_ND)
        and _has_no_gaps(right_VD)
        and onednn_is_faster()
    )


def _has_no_gaps(matrix: Tensor) -> bool:
    return matrix.is_contiguous() or matrix.T.is_contiguous()


def _is_plain(left: Tensor, right: Tensor) -> bool:
    """Return whether both are float32 matrices on a CPU, without autocast and compilation."""
    return (
        all(m.dtype == torch.float32 and m.device.type == "cpu" and m.dim() == 2 for m in (left, right))
        and not torch.is_autocast_enabled("cpu")
        and not is_tracing()
    )


def of_few(hidden_MD: Tensor, words_SD: Tensor) -> Tensor:
    """Return the (M, S) products of a few vectors with words, without gradients.

    The order of the factors is the one in which words are read at the speed of the memory.
    """
    if len(hidden_MD) > FEWEST and is_onednns(hidden_MD, words_SD):
        return onednn_linear(hidden_MD, words_SD)
    if not _words_first(hidden_MD) or words_SD.stride(1) != 1:  # words stored by columns are slower as the first factor
        return hidden_MD @ words_SD.T
    columns_DM = columns_of(hidden_MD[0]) if len(hidden_MD) == 1 else hidden_MD.T
    return (words_SD @ columns_DM).T[: len(hidden_MD)]


def columns_of(hidden_D: Tensor) -> Tensor:
    """Return (D, 1), or (D, 2) with the vector twice where MKL reads words at half the speed for one column."""
    return torch.cat([hidden_D, hidden_D]).view(2, -1).T if _words_first(hidden_D) else hidden_D[:, None]


def _words_first(hidden: Tensor) -> bool:
    return hidden.dtype == torch.float32 and hidden.device.type == "cpu" and words_first()


@cache
def words_first() -> bool:
    """Return whether MKL computes W h^T faster than h W^T for few vectors h on this processor.

    It is twice as fast on an AMD EPYC, and half as fast on an Intel Xeon.
    """
    words_KSD, vectors_2D = torch.ones(48, 256, 512), torch.ones(2, 512)  # larger than the caches of a core

    def seconds(first: bool) -> float:
        start = time.perf_counter()
        for words_SD in words_KSD:
            _ = words_SD @ vectors_2D.T if first else vectors_2D @ words_SD.T
        return time.perf_counter() - start

    return _is_faster(seconds)


@cache
def onednn_is_faster() -> bool:
    """Return whether oneDNN computes large products faster than MKL on this processor, if PyTorch has both."""
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    left_ND, right_VD = torch.ones(512, 512), torch.ones(1024, 512)

    def seconds(onednn: bool) -> float:
        start = time.perf_counter()
        _ = onednn_linear(left_ND, right_VD) if onednn else left_ND @ right_VD.T
        return time.perf_counter() - start

    with torch.no_grad():
        return _is_faster(seconds, _GAIN)


def _is_faster(seconds: Callable[[bool], float], gain: float = 1.0) -> bool:
    """Return whether True is at least `gain` times as fast as False.

    Trials alternate and the fastest of each are compared, so that a short disturbance does not matter. The first trial
    of each is a warm-up.
    """
    trials = [(seconds(True), seconds(False)) for _ in range(_TRIALS)][1:]
    first, second = (min(times) for times in zip(*trials, strict=True))
    return gain * first < second
