"""Our C++ kernels (`impls/cpp`), run by the threads of PyTorch's OpenMP.

They compute both levels of two-level layers, binary trees, fused softmax and matrix products.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from vocabench.impls import cpp
from vocabench.impls.cpp import CPP, Paths
from vocabench.impls.errors import Unsupported
from vocabench.impls.on_numpy.methods.sohsm import Projected

_NO_MEMORY = -1  # as in `impls/cpp/for_ctypes.cpp`


class Rows(Protocol):
    """Where the words of a two-level layer are stored, as described by `two_level.words.WordRows`."""

    @property
    def start_C(self) -> Tensor: ...

    @property
    def size_C(self) -> Tensor: ...

    @property
    def slots(self) -> int: ...

    @property
    def in_slab(self) -> bool: ...


def known(dtype: torch.dtype) -> bool:
    """Return whether there are kernels for vectors of `dtype` on this machine's CPU."""
    return dtype == torch.float32 and _library() is not None


def multiplies(dtype: torch.dtype) -> bool:
    """Return whether they multiply large matrices of `dtype` faster than PyTorch."""
    return cpp.multiplies_fastest() and known(dtype)


def runs_on(words: Tensor) -> bool:
    """Return whether the kernels can read these words."""
    return words.device.type == "cpu" and words.dtype == torch.float32 and words.is_contiguous()


def scores(hidden_RD: Tensor, row_N: Tensor, words: Tensor, bias: Tensor | None, ends_C: Tensor, rows: Rows) -> Tensor:
    """Return the (N, S) scores of each token, sorted by cluster, with the words of its cluster; -inf in empty slots.

    Args:
        hidden_RD: Vectors in float32.
        row_N: The row of `hidden_RD` of each token.
        words: Word vectors (C, S, D) or (V, D), as described by `rows`.
        bias: Word biases (C, S) or (V,), or None.
        ends_C: (C,) int32, one past the last token of each cluster.
        rows: Where the words are stored.
    """
    scores_NS = hidden_RD.new_empty(len(row_N), rows.slots)
    inputs = hidden_RD.contiguous(), row_N.contiguous(), words, rows.start_C, rows.size_C, ends_C
    _call("scores_of_pointers", words, inputs, rows.slots, bias, scores_NS)
    return scores_NS


def losses(
    hidden_ND: Tensor, row_N: Tensor, slot_N: Tensor, words: Tensor, bias: Tensor | None, ends_C: Tensor,
    rows: Rows, *, differentiated: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the (N,) negative log-likelihoods of tokens sorted by cluster, and their gradients.

    The likelihood is that of the word in `slot_N` among those of its cluster. The gradients are those with respect to
    the scores (N, S) and the hidden vectors (N, D), one vector for each token. They have no rows unless
    `differentiated`.
    """
    losses_N = hidden_ND.new_empty(len(row_N))
    excess_NS = hidden_ND.new_empty(len(row_N) if differentiated else 0, rows.slots)
    dhidden_ND = hidden_ND.new_empty(len(hidden_ND) if differentiated else 0, hidden_ND.shape[1])
    inputs = hidden_ND.contiguous(), row_N.contiguous(), words, rows.start_C, rows.size_C, ends_C
    gradients = (excess_NS, dhidden_ND) if differentiated else (None, None)
    _call("losses_of_pointers", words, inputs, rows.slots, slot_N.to(torch.int32), bias, losses_N, *gradients)
    return losses_N, excess_NS, dhidden_ND


def gradients(
    excess_NS: Tensor, weight_N: Tensor, hidden_ND: Tensor, row_N: Tensor, words: Tensor, bias: Tensor | None,
    ends_C: Tensor, rows: Rows,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the gradients of the weighted sum of `losses` with respect to the words and their biases."""
    allocate = torch.zeros_like if rows.in_slab else torch.empty_like
    dwords, dbias = allocate(words), None if bias is None else allocate(bias)
    inputs = hidden_ND.contiguous(), row_N.contiguous(), rows.start_C, rows.size_C, ends_C
    _call("gradients_of_pointers", words, inputs, rows.slots, excess_NS, weight_N.contiguous(), dwords, dbias)
    return dwords, dbias


def likeliest(
    hidden_RD: Tensor, log_cluster_RC: Tensor, words: Tensor, bias: Tensor | None, word_CS: Tensor, rows: Rows,
    k: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return values and ids (R, K) of the k likeliest words, best first and ties by id, and the (R,) share of clusters
    searched: 0 for rows that contain NaN, whose words are meaningless.
    """
    inputs = hidden_RD.contiguous(), log_cluster_RC.contiguous(), words, bias, word_CS, rows.start_C, rows.size_C
    sizes = len(hidden_RD), len(rows.size_C), words.shape[-1], rows.slots, k
    result = _result(hidden_RD, k)
    _run("likeliest_of_pointers", words, *map(_at, inputs), *map(ctypes.c_int64, sizes), *map(_at, result))
    return result


def likeliest_of_hidden(
    hidden_ND: Tensor, projected: Projected, upper: Sequence[Tensor | None], words: Tensor, bias: Tensor | None,
    word_CS: Tensor, rows: Rows, k: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the same as `likeliest`, but also compute the upper level with the kernel.

    Args:
        hidden_ND: Hidden vectors.
        projected: How projections transform vectors.
        upper: The parameters named by `vocabench.impls.on_numpy.methods.sohsm.UPPER_LEVEL`.
        words: Word vectors (C, S, D) or (V, D), as described by `rows`.
        bias: Word biases (C, S) or (V,), or None.
        word_CS: The word in each slot.
        rows: Where the words are stored.
        k: From 1 to V.
    """
    upper = [None if parameter is None else parameter.contiguous() for parameter in upper]
    inputs = hidden_ND.contiguous(), *upper, words, bias, word_CS, rows.start_C, rows.size_C
    sizes = len(hidden_ND), len(rows.size_C), words.shape[-1], rows.slots, k
    result = _result(hidden_ND, k)
    scalars = *map(ctypes.c_int64, sizes), *map(ctypes.c_float, projected)
    _run("likeliest_of_hidden_pointers", words, *map(_at, inputs), *scalars, *map(_at, result))
    return result


def matrix_product(left_ND: Tensor, right_VD: Tensor) -> Tensor:
    """Return the (N, V) product of float32 matrices, with contiguous rows or contiguous columns."""
    left_ND, right_VD = (m if 1 in m.stride() else m.contiguous() for m in (left_ND, right_VD))
    product_NV = left_ND.new_empty(len(left_ND), len(right_VD))
    sizes = *left_ND.shape, len(right_VD), *left_ND.stride(), *right_VD.stride()
    factors = _at(left_ND), _at(right_VD)
    _run("matrix_product_of_pointers", product_NV, *factors, *map(ctypes.c_int64, sizes), _at(product_NV))
    return product_NV


def weight_gradient(dscores_NV: Tensor, hidden_ND: Tensor) -> Tensor:
    """Return the (V, D) gradient of h W^T with respect to W, in float32."""
    dweight_VD = hidden_ND.new_empty(dscores_NV.shape[1], hidden_ND.shape[1])
    inputs, sizes = (dscores_NV.contiguous(), hidden_ND.contiguous()), (*dscores_NV.shape, hidden_ND.shape[1])
    _run("weight_gradient_of_pointers", dweight_VD, *map(_at, inputs), *map(ctypes.c_int64, sizes), _at(dweight_VD))
    return dweight_VD


def path_losses(hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> tuple[Tensor, Tensor, Tensor]:
    """Return the (N,) sums over paths of -log sigma(sign x r.h), and their gradients with respect to the products r.h
    (N, L) and the hidden vectors (N, D).
    """
    hidden_ND = hidden_ND.contiguous()
    size = *hidden_ND.shape, paths.index_NL.shape[1]
    losses_N, dscores_NL = hidden_ND.new_empty(len(hidden_ND)), torch.empty_like(paths.sign_NL, dtype=hidden_ND.dtype)
    result = losses_N, dscores_NL, torch.empty_like(hidden_ND)
    inputs = hidden_ND, *paths, node_weight
    _run("path_losses_of_pointers", node_weight, *map(_at, inputs), *map(ctypes.c_int64, size), *map(_at, result))
    return result


def path_gradients(dscores_NL: Tensor, hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> Tensor:
    """Return the (nodes, D) gradient with respect to the nodes, from that with respect to the products."""
    inputs = hidden_ND.contiguous(), *paths, dscores_NL.contiguous()
    size = *hidden_ND.shape, paths.index_NL.shape[1], len(node_weight)
    dnode = torch.empty_like(node_weight)
    _run("path_gradients_of_pointers", dnode, *map(_at, inputs), *map(ctypes.c_int64, size), _at(dnode))
    return dnode


def likeliest_leaves(hidden_ND: Tensor, node_weight: Tensor, children: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return values and ids (N, K) of a tree's k likeliest leaves, best first and ties by id, and the (N,) share of
    nodes visited: 0 for rows that contain NaN.
    """
    return _leaves("likeliest_leaves_of_pointers", hidden_ND, node_weight, children, k)


def leaves_of_beam(
    hidden_ND: Tensor, node_weight: Tensor, children: Tensor, k: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same as `likeliest_leaves`, for the leaves below the `width` likeliest prefixes of each level."""
    return _leaves("leaves_of_beam_of_pointers", hidden_ND, node_weight, children, k, width)


def _leaves(name: str, hidden_ND: Tensor, node_weight: Tensor, children: Tensor, *further: int):  # type: ignore[no-untyped-def]
    inputs, result = (hidden_ND.contiguous(), node_weight, children), _result(hidden_ND, further[0])
    sizes = len(hidden_ND), *node_weight.shape, *further
    _run(name, node_weight, *map(_at, inputs), *map(ctypes.c_int64, sizes), *map(_at, result))
    return result


def _result(hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate the values, ids and share of `Likeliest` in `impls/cpp/likeliest.h`."""
    rows = len(hidden_ND)
    ids_NK = torch.empty(rows, k, dtype=torch.int64)
    return hidden_ND.new_empty(rows, k), ids_NK, hidden_ND.new_empty(rows)


def fused_softmax(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor, share_N: Tensor, most: int
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return total and gradients as in `impls/cpp/fused_softmax.h`; targets are int64.

    Raises:
        IndexError: A target is outside the vocabulary.
    """
    inputs = hidden_ND.contiguous(), weight_VD, bias_V.contiguous(), targets_N.contiguous(), share_N.contiguous()
    gradients = torch.empty_like(inputs[0]), torch.empty_like(weight_VD), torch.empty_like(inputs[2])
    by_unit = cpp.fuses_by_unit(len(hidden_ND), most, weight_VD.shape[1])
    total, sizes = hidden_ND.new_empty(()), (len(hidden_ND), *weight_VD.shape, most, by_unit)
    pointers = *map(_at, inputs), *map(ctypes.c_int64, sizes), *map(_at, (total, *gradients))
    if not _run("fused_softmax_of_pointers", weight_VD, *pointers):
        raise IndexError(f"a target is none of the {len(weight_VD)} words")
    return total, gradients


def _call(name: str, words: Tensor, inputs: Sequence[Tensor], slots: int, *further: Tensor | None) -> None:
    """Call a kernel whose inputs are tokens and words, with the clusters' `ends_C` last."""
    sizes = len(inputs[-1]), words.shape[-1], slots
    _run(name, words, *map(_at, inputs), *map(ctypes.c_int64, sizes), *map(_at, further))


def _run(name: str, words: Tensor, *arguments: object) -> bool:
    """Call a kernel and return whether it completed; it may refuse its inputs.

    Raises:
        MemoryError: There is not enough memory for the kernel's arrays.
    """
    library = _library()
    if library is None or not runs_on(words):
        raise Unsupported(f"{CPP} for {words.dtype} on {words.device}: allowed: torch.float32 on a CPU with a compiler")
    done = getattr(library, name)(ctypes.c_int(torch.get_num_threads()), *arguments)
    if done < 0:
        raise MemoryError(f"no memory for the {CPP}") if done == _NO_MEMORY else RuntimeError(f"{name} has failed")
    return bool(done)


def _at(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _library() -> ctypes.CDLL | None:
    return cpp.library("for_ctypes", ("-DTHREADS_OF_OPENMP",))
