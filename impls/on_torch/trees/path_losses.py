"""The loss of paths down a binary tree by kernels of our own on a CPU (`impls/cpp/tree_paths.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vocabench.impls.cpp import Paths
from vocabench.impls.on_torch.ops import cpp_kernels


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
        by_nodes = _sparse if ctx.row_sparse else cpp_kernels.path_gradients
        return dhidden_ND, by_nodes(dscores_NL * dnll_N[:, None], hidden_ND, node_weight, Paths(*paths)), None, None


def _sparse(dscores_NL: Tensor, hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> Tensor:
    """The gradient by the nodes on the paths alone."""
    on_path_NL = paths.sign_NL != 0
    nodes_U, place_P = torch.unique(paths.index_NL[on_path_NL], return_inverse=True)
    place_NL = torch.zeros_like(paths.index_NL).masked_scatter_(on_path_NL, place_P.to(paths.index_NL.dtype))
    table_UD = node_weight[: len(nodes_U)]  # for its size alone
    values_UD = cpp_kernels.path_gradients(dscores_NL, hidden_ND, table_UD, paths._replace(index_NL=place_NL))
    return torch.sparse_coo_tensor(
        nodes_U[None], values_UD, node_weight.shape, is_coalesced=True, check_invariants=False
    )


def path_nll(hidden_ND: Tensor, node_weight: Tensor, paths: Paths, row_sparse: bool) -> Tensor:
    """(N,) sum over each token's path of -log sigma(sign x r.h), in float32.

    Args:
        hidden_ND: Any floating dtype.
        node_weight: The inner nodes' vectors.
        paths: The tokens'.
        row_sparse: Whether the gradient by the nodes is a sparse tensor.
    """
    return _PathNll.apply(hidden_ND, node_weight, paths, row_sparse)  # type: ignore[return-value]
