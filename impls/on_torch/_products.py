"""Products of float32 matrices on a CPU by either of the two libraries that PyTorch is built with: MKL and oneDNN.

PyTorch itself takes MKL. On AMD's processors oneDNN makes h W^T, and its gradient by h, up to 1.4 times as fast, and
the gradient by W no faster. So layers that write out their gradient have a form of each; measurement says which is
taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_BY_ONEDNN = ", products by oneDNN"


def forms(own: Sequence[str], dtype: torch.dtype) -> tuple[str, ...]:
    """A layer's `own` forms, and the first of them with products by oneDNN where there is one."""
    known = dtype == torch.float32 and torch.backends.mkldnn.is_available()
    known = known and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return (*own, own[0] + _BY_ONEDNN) if known else tuple(own)


def own(form: str) -> str:
    """The layer's own form, whichever library makes its products."""
    return form.removesuffix(_BY_ONEDNN)


def linear(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, form: str) -> Tensor:
    """(N, V) h W^T + b; without a gradient."""
    if form.endswith(_BY_ONEDNN):
        return torch.ops.mkldnn._linear_pointwise(hidden_ND, weight_VD, bias_V, "none", [], "")
    return torch.addmm(bias_V, hidden_ND, weight_VD.T)


def product(left_NV: Tensor, right_VD: Tensor, form: str) -> Tensor:
    """(N, D); without a gradient."""
    if form.endswith(_BY_ONEDNN):
        return torch.ops.mkldnn._linear_pointwise(left_NV, right_VD.T, None, "none", [], "")
    return left_NV @ right_VD


def add_product(total_ND: Tensor, left_NV: Tensor, right_VD: Tensor, form: str) -> None:
    """`product` added to `total_ND` in place."""
    if form.endswith(_BY_ONEDNN) or total_ND.dtype != right_VD.dtype:
        total_ND += product(left_NV, right_VD, form)
    else:
        total_ND.addmm_(left_NV, right_VD)
