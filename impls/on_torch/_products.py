"""Products of float32 matrices on a CPU by either of the two libraries that PyTorch is built with: MKL and oneDNN.

PyTorch itself takes MKL. On the processor that this was measured on, an AMD EPYC, oneDNN makes h W^T and its gradient
by h up to 1.4 times as fast, and the gradient by W no faster. So layers have a form of each; measurement says which is
taken. So it does for products of few vectors with many words, which take as long as reading the words, or twice that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

FEW_VECTORS = 12  # up to which the order of their products with words, `words_first`, decides

_BY_ONEDNN = ", products by oneDNN"


def forms(own: Sequence[str], dtype: torch.dtype, *, both: int = 1) -> tuple[str, ...]:
    """A layer's `own` forms, and the first `both` of them with products by oneDNN where there is one."""
    known = dtype == torch.float32 and torch.backends.mkldnn.is_available()
    known = known and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return (*own, *(form + _BY_ONEDNN for form in own[:both])) if known else tuple(own)


def own(form: str) -> str:
    """The layer's own form, whichever library makes its products."""
    return form.removesuffix(_BY_ONEDNN)


def linear(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, form: str) -> Tensor:
    """(N, V) h W^T + b, for a function that writes out its gradient."""
    if form.endswith(_BY_ONEDNN):
        return torch.ops.mkldnn._linear_pointwise(hidden_ND, weight_VD, bias_V, "none", [], "")
    return F.linear(hidden_ND, weight_VD, bias_V)


class _ByOneDNN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, bias_V) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(hidden_ND, weight_VD)
        return linear(hidden_ND, weight_VD, bias_V, _BY_ONEDNN)

    @staticmethod
    @once_differentiable
    def backward(ctx, dscores_NV):  # type: ignore[override]
        hidden_ND, weight_VD = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            product(dscores_NV, weight_VD, _BY_ONEDNN) if needs_hidden else None,
            dscores_NV.T @ hidden_ND if needs_weight else None,
            dscores_NV.sum(dim=0) if needs_bias else None,
        )


def differentiable_linear(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, form: str) -> Tensor:
    """(N, V) h W^T + b, with its gradient; MKL's under autocast and in decoding, where few rows gain nothing."""
    autocast = torch.is_autocast_enabled(weight_VD.device.type)
    if form.endswith(_BY_ONEDNN) and torch.is_grad_enabled() and not autocast:
        return _ByOneDNN.apply(hidden_ND, weight_VD, bias_V)  # type: ignore[return-value]
    return F.linear(hidden_ND, weight_VD, bias_V)


def product(left_NV: Tensor, right_VD: Tensor, form: str) -> Tensor:
    """(N, D) product, for a function that writes out its gradient."""
    if form.endswith(_BY_ONEDNN):
        return torch.ops.mkldnn._linear_pointwise(left_NV, right_VD.T, None, "none", [], "")
    return left_NV @ right_VD


def add_product(total_ND: Tensor, left_NV: Tensor, right_VD: Tensor, form: str) -> None:
    """`product` added to `total_ND` in place."""
    if form.endswith(_BY_ONEDNN) or total_ND.dtype != right_VD.dtype:
        total_ND += product(left_NV, right_VD, form)
    else:
        total_ND.addmm_(left_NV, right_VD)


def of_few(hidden_MD: Tensor, words_SD: Tensor) -> Tensor:
    """(M, S) products of a few vectors with words, in the order in which the words are read at the speed of the
    memory."""
    if not _words_first(hidden_MD):
        return hidden_MD @ words_SD.T
    columns_DM = hidden_MD.T if len(hidden_MD) > 1 else columns_of(hidden_MD[0])
    return (words_SD @ columns_DM).T[: len(hidden_MD)]


def columns_of(hidden_D: Tensor) -> Tensor:
    """(D, 1), or (D, 2) with the vector twice where MKL reads words at half the speed for one column."""
    return hidden_D.repeat(2, 1).T if _words_first(hidden_D) else hidden_D[:, None]


def _words_first(hidden: Tensor) -> bool:
    return hidden.dtype == torch.float32 and hidden.device.type == "cpu" and words_first()


@cache
def words_first() -> bool:
    """Whether W h^T is faster than h W^T for few vectors h on this processor: twice as fast on an AMD EPYC, half as
    fast on an Intel Xeon. Tried once a process, in some hundredths of a second."""
    words_KSD, vectors_2D = torch.ones(48, 256, 512), torch.ones(2, 512)  # more than caches next to a core hold

    def seconds(first: bool) -> float:
        start = time.perf_counter()
        for words_SD in words_KSD:
            _ = words_SD @ vectors_2D.T if first else vectors_2D @ words_SD.T
        return time.perf_counter() - start

    found = [(seconds(True), seconds(False)) for _ in range(4)][1:]
    return min(first for first, _ in found) < min(second for _, second in found)
