"""The loss of paths in a binary tree by our C++ kernels (`impls/cpp/tree_paths.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor

from vocabench.impls.cpp import Paths
from vocabench.impls.on_torch.ops import cpp_kernels
from vocabench.impls.on_torch.ops.once import once_differentiable


class _PathNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, node_weight, paths: Paths, row_sparse: bool) -> Tensor:  # type: ignore[override]
        cast_ND = hidden_ND.to(node_weight.dtype)
        nll_N, dscores_NL, unscaled_ND = cpp_kernels.path_losses(cast_ND, node_weight, paths)
        ctx.save_for_backward(cast_ND, node_weight, dscores_NL, unscaled_ND, *paths)
        ctx.row_sparse, ctx.hidden_dtype = row_sparse, hidden_ND.dtype
        return nll_N

    @staticmethod
    @once_differentiable
    def backward(ctx, dnll_N):  # type: ignore[override]
        hidden_ND, node_weight, dscores_NL, unscaled_ND, *paths = ctx.saved_tensors
        dhidden_ND = (unscaled_ND * dnll_N[:, None]).to(ctx.hidden_dtype)
        node_gradient = _sparse if ctx.row_sparse else cpp_kernels.path_gradients
        return (
            dhidden_ND,
            node_gradient(dscores_NL * dnll_N[:, None], hidden_ND, node_weight, Paths(*paths)),
            None,
            None,
        )


def _sparse(dscores_NL: Tensor, hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> Tensor:
    """Return the gradient with respect to the nodes as a sparse tensor of those on the paths."""
    on_path_NL = paths.sign_NL != 0
    nodes_U, place_P = torch.unique(paths.index_NL[on_path_NL], return_inverse=True)
    place_NL = torch.zeros_like(paths.index_NL).masked_scatter_(on_path_NL, place_P.to(paths.index_NL.dtype))
    table_UD = node_weight[: len(nodes_U)]  # only its size matters
    values_UD = cpp_kernels.path_gradients(dscores_NL, hidden_ND, table_UD, paths._replace(index_NL=place_NL))
    return torch.sparse_coo_tensor(
        nodes_U[None], values_UD, node_weight.shape, is_coalesced=True, check_invariants=False
    )


def path_nll(hidden_ND: Tensor, node_weight: Tensor, paths: Paths, row_sparse: bool) -> Tensor:
    """Return the (N,) sums over each token's path of -log sigma(sign x r.h), in float32.

    Args:
        hidden_ND: Hidden vectors in any floating dtype.
        node_weight: Vectors of the inner nodes.
        paths: Paths of the tokens.
        row_sparse: Whether the gradient with respect to the nodes is a sparse tensor.
    """
    return _PathNll.apply(hidden_ND, node_weight, paths, row_sparse)  # type: ignore[return-value]
