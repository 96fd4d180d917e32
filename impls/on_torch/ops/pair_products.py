"""Products of (hidden vector, word or node) pairs, for so few of all pairs that no matrix product pays off."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor

from vocabench.impls.on_torch.tensors import at_least_float32
from vocabench.impls.on_torch.tracing import is_tracing

_AT_ONCE = 4096  # pairs whose vectors are gathered at a time by default; they stay in cache


def are_read_in_place(weight_VD: Tensor) -> bool:
    """Return whether products read both vectors in place, as on a CPU, instead of gathering copies."""
    return weight_VD.device.type == "cpu" and weight_VD.dtype in (torch.float32, torch.float64)


def products(hidden_ND: Tensor, weight_VD: Tensor, row_P: Tensor, place_P: Tensor, at_once: int = 0) -> Tensor:
    """Return the (P,) products h . w, at least in float32 and without gradients.

    Args:
        hidden_ND: Hidden vectors.
        weight_VD: Vectors of words or nodes, in the same dtype.
        row_P: The hidden vector of each pair, in rising order.
        place_P: The word or node of each pair.
        at_once: Number of pairs whose vectors are gathered at a time; 0 to read them in place where that is possible.
    """
    if is_tracing():
        return (at_least_float32(weight_VD[place_P]) * hidden_ND[row_P]).sum(dim=1)
    # A sparse matrix cannot hold duplicates, but a beam in a small tree may contain the same pair many times.
    if at_once == 0 and are_read_in_place(weight_VD) and len(row_P) <= len(hidden_ND) * len(weight_VD):
        return _in_place(hidden_ND, weight_VD, row_P, place_P)
    products_P = at_least_float32(weight_VD[:0]).new_empty(len(row_P))
    pieces = (array.split(at_once or _AT_ONCE) for array in (row_P, place_P, products_P))
    for row_X, place_X, products_X in zip(*pieces, strict=True):
        torch.sum(weight_VD[place_X] * hidden_ND[row_X], dim=1, dtype=products_X.dtype, out=products_X)
    return products_P


def _in_place(hidden_ND: Tensor, weight_VD: Tensor, row_P: Tensor, place_P: Tensor) -> Tensor:
    """Compute the values of a sparse (N, V) matrix, five to ten times as fast as from copies of the vectors."""
    _warn_once()
    begins_N = torch.searchsorted(row_P.contiguous(), torch.arange(len(hidden_ND) + 1, device=row_P.device))
    zeros_P, size = hidden_ND.new_zeros(len(row_P)), (len(hidden_ND), len(weight_VD))
    pattern_NV = torch.sparse_csr_tensor(begins_N, place_P, zeros_P, size, check_invariants=False)
    return torch.sparse.sampled_addmm(pattern_NV, hidden_ND, weight_VD.T).values()


@cache
def _warn_once() -> None:
    """Trigger and hide PyTorch's warning that sparse matrices are in beta, which it shows once for each process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 0], [], torch.zeros(0), (1, 1))
