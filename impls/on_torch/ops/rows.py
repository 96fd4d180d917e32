"""Rows of a parameter, with gradients that are summed before they are rounded."""

from __future__ import annotations

import torch
from torch import Tensor

from vocabench.impls.on_torch.ops.once import once_differentiable
from vocabench.impls.on_torch.tensors import at_least_float32


class _Rows(torch.autograd.Function):
    """Rows of a parameter, possibly repeated, whose gradient is summed for each row before it is rounded."""

    @staticmethod
    def forward(ctx, parameter, ids_R, row_sparse: bool) -> Tensor:  # type: ignore[override]
        ctx.row_sparse = row_sparse
        ctx.save_for_backward(parameter, ids_R)
        return at_least_float32(parameter.index_select(0, ids_R))

    @staticmethod
    @once_differentiable
    def backward(ctx, drows):  # type: ignore[override]
        parameter, ids_R = ctx.saved_tensors
        ids_U, place_R = torch.unique(ids_R, return_inverse=True)
        sums = drows.new_zeros(len(ids_U), *drows.shape[1:]).index_add_(0, place_R, drows).to(parameter.dtype)
        if ctx.row_sparse:
            size = parameter.shape
            grad = torch.sparse_coo_tensor(ids_U[None], sums, size, is_coalesced=True, check_invariants=False)
        else:
            grad = torch.zeros_like(parameter).index_copy_(0, ids_U, sums)
        return grad, None, None


def rows_of(parameter: Tensor, ids_R: Tensor, row_sparse: bool = False) -> Tensor:
    """Return (R, ...) rows, possibly repeated, at least in float32.

    Args:
        parameter: (V, ...).
        ids_R: Indices of rows.
        row_sparse: Whether the gradient with respect to the parameter is a sparse tensor.
    """
    return _Rows.apply(parameter, ids_R, row_sparse)  # type: ignore[return-value]


def mean_row(parameter: Tensor) -> Tensor:
    """Return the mean over the rows of a parameter (V, ...), at least in float32."""
    return parameter.mean(dim=0, dtype=torch.promote_types(parameter.dtype, torch.float32))
