"""Our kernels in C++ (`impls/cpp`), in the threads of PyTorch's own OpenMP: both levels of two-level layers, binary
trees, and fused softmax."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from vocabench.impls import cpp
from vocabench.impls.cpp import CPP, Paths
from vocabench.impls.errors import Unsupported
from vocabench.impls.on_numpy.methods.sohsm import Projected
from vocabench.impls.on_torch.two_level.word_rows import WordRows

_NO_MEMORY = -1  # as `impls/cpp/for_ctypes.cpp` has it


def known(dtype: torch.dtype) -> bool:
    """Whether there are kernels for vectors of `dtype` on this machine's CPU."""
    return dtype == torch.float32 and _library() is not None


def multiplies(dtype: torch.dtype) -> bool:
    """Whether they multiply large matrices of `dtype` there faster than PyTorch does."""
    return cpp.multiplies_fastest() and known(dtype)


def runs_on(words: Tensor) -> bool:
    """Whether the kernels take these words."""
    return words.device.type == "cpu" and words.dtype == torch.float32 and words.is_contiguous()


def scores(
    hidden_RD: Tensor, row_N: Tensor, words: Tensor, bias: Tensor | None, ends_C: Tensor, rows: WordRows
) -> Tensor:
    """(N, S) of each token, sorted by cluster, with the words of its cluster; -inf in empty slots.

    Args:
        hidden_RD: Vectors in float32.
        row_N: That of each token.
        words: (C, S, D) or (V, D) word vectors, as `rows` has it.
        bias: (C, S) or (V,) word biases, or None.
        ends_C: (C,) int32: one past the last token of each cluster.
    """
    scores_NS = hidden_RD.new_empty(len(row_N), rows.slots)
    given = hidden_RD.contiguous(), row_N.contiguous(), words, rows.start_C, rows.size_C, ends_C
    _call("scores_of_pointers", words, given, rows.slots, bias, scores_NS)
    return scores_NS


def losses(
    hidden_ND: Tensor, row_N: Tensor, slot_N: Tensor, words: Tensor, bias: Tensor | None, ends_C: Tensor,
    rows: WordRows, *, learns: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(N,) of each token, sorted by cluster, -log P of the word in `slot_N` among those of its cluster.

    And if it `learns`, else of no rows, (N, S) their gradients by the scores, and (N, D) those by the hidden vectors,
    each of which is one token's.
    """
    losses_N = hidden_ND.new_empty(len(row_N))
    excess_NS = hidden_ND.new_empty(len(row_N) if learns else 0, rows.slots)
    dhidden_ND = hidden_ND.new_empty(len(hidden_ND) if learns else 0, hidden_ND.shape[1])
    given = hidden_ND.contiguous(), row_N.contiguous(), words, rows.start_C, rows.size_C, ends_C
    by = (excess_NS, dhidden_ND) if learns else (None, None)
    _call("losses_of_pointers", words, given, rows.slots, slot_N.to(torch.int32), bias, losses_N, *by)
    return losses_N, excess_NS, dhidden_ND


def gradients(
    excess_NS: Tensor, weight_N: Tensor, hidden_ND: Tensor, row_N: Tensor, words: Tensor, bias: Tensor | None,
    ends_C: Tensor, rows: WordRows,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Those by the words and by their biases, in the shapes of these, of the sum of `losses`, each times its weight."""
    made = torch.zeros_like if rows.in_slab else torch.empty_like
    dwords, dbias = made(words), None if bias is None else made(bias)
    given = hidden_ND.contiguous(), row_N.contiguous(), rows.start_C, rows.size_C, ends_C
    _call("gradients_of_pointers", words, given, rows.slots, excess_NS, weight_N.contiguous(), dwords, dbias)
    return dwords, dbias


def likeliest(
    hidden_RD: Tensor, log_cluster_RC: Tensor, words: Tensor, bias: Tensor | None, word_CS: Tensor, rows: WordRows,
    k: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Values and ids (R, K) of the k likeliest words, best first, equals by their ids, and (R,) the share of the
    clusters that were looked through for them: 0 of a row that is no numbers, whose words are of no meaning."""
    given = hidden_RD.contiguous(), log_cluster_RC.contiguous(), words, bias, word_CS, rows.start_C, rows.size_C
    sizes = len(hidden_RD), len(rows.size_C), words.shape[-1], rows.slots, k
    found = _found(hidden_RD, k)
    _run("likeliest_of_pointers", words, *map(_at, given), *map(ctypes.c_int64, sizes), *map(_at, found))
    return found


def likeliest_of_hidden(
    hidden_ND: Tensor, projected: Projected, upper: Sequence[Tensor | None], words: Tensor, bias: Tensor | None,
    word_CS: Tensor, rows: WordRows, k: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `likeliest`, of hidden vectors whose upper level is made by the kernel too.

    Args:
        projected: What projections make of vectors.
        upper: What `vocabench.impls.on_numpy.methods.sohsm.UPPER_LEVEL` names.
    """
    upper = [None if each is None else each.contiguous() for each in upper]
    given = hidden_ND.contiguous(), *upper, words, bias, word_CS, rows.start_C, rows.size_C
    sizes = len(hidden_ND), len(rows.size_C), words.shape[-1], rows.slots, k
    found = _found(hidden_ND, k)
    numbers = *map(ctypes.c_int64, sizes), *map(ctypes.c_float, projected)
    _run("likeliest_of_hidden_pointers", words, *map(_at, given), *numbers, *map(_at, found))
    return found


def matrix_product(left_ND: Tensor, right_VD: Tensor) -> Tensor:
    """(N, V) of float32 matrices, whose rows or columns may lie one after the other."""
    left_ND, right_VD = (m if 1 in m.stride() else m.contiguous() for m in (left_ND, right_VD))
    product_NV = left_ND.new_empty(len(left_ND), len(right_VD))
    sizes = *left_ND.shape, len(right_VD), *left_ND.stride(), *right_VD.stride()
    factors = _at(left_ND), _at(right_VD)
    _run("matrix_product_of_pointers", product_NV, *factors, *map(ctypes.c_int64, sizes), _at(product_NV))
    return product_NV


def weight_gradient(dscores_NV: Tensor, hidden_ND: Tensor) -> Tensor:
    """(V, D) the gradient of h W^T by W, of float32."""
    dweight_VD = hidden_ND.new_empty(dscores_NV.shape[1], hidden_ND.shape[1])
    given, sizes = (dscores_NV.contiguous(), hidden_ND.contiguous()), (*dscores_NV.shape, hidden_ND.shape[1])
    _run("weight_gradient_of_pointers", dweight_VD, *map(_at, given), *map(ctypes.c_int64, sizes), _at(dweight_VD))
    return dweight_VD


def path_losses(hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> tuple[Tensor, Tensor, Tensor]:
    """(N,) sums over paths of -log sigma(sign x r.h), and their derivatives by the products r.h (N, L) and by the
    hidden vectors (N, D)."""
    hidden_ND = hidden_ND.contiguous()
    size = *hidden_ND.shape, paths.index_NL.shape[1]
    losses_N, dscores_NL = hidden_ND.new_empty(len(hidden_ND)), torch.empty_like(paths.sign_NL, dtype=hidden_ND.dtype)
    found = losses_N, dscores_NL, torch.empty_like(hidden_ND)
    given = hidden_ND, *paths, node_weight
    _run("path_losses_of_pointers", node_weight, *map(_at, given), *map(ctypes.c_int64, size), *map(_at, found))
    return found


def path_gradients(dscores_NL: Tensor, hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> Tensor:
    """(nodes, D) what derivatives by the products give by the nodes."""
    given = hidden_ND.contiguous(), *paths, dscores_NL.contiguous()
    size = *hidden_ND.shape, paths.index_NL.shape[1], len(node_weight)
    dnode = torch.empty_like(node_weight)
    _run("path_gradients_of_pointers", dnode, *map(_at, given), *map(ctypes.c_int64, size), _at(dnode))
    return dnode


def likeliest_leaves(hidden_ND: Tensor, node_weight: Tensor, children: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values and numbers (N, K) of a tree's k likeliest leaves, best first, equals by their numbers, and (N,) the share
    of the nodes that were looked at for them: 0 of a row that is no numbers."""
    return _leaves("likeliest_leaves_of_pointers", hidden_ND, node_weight, children, k)


def leaves_of_beam(
    hidden_ND: Tensor, node_weight: Tensor, children: Tensor, k: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As `likeliest_leaves`, of the leaves that the `width` likeliest ways of each level lead to."""
    return _leaves("leaves_of_beam_of_pointers", hidden_ND, node_weight, children, k, width)


def _leaves(name: str, hidden_ND: Tensor, node_weight: Tensor, children: Tensor, *further: int):  # type: ignore[no-untyped-def]
    given, found = (hidden_ND.contiguous(), node_weight, children), _found(hidden_ND, further[0])
    sizes = len(hidden_ND), *node_weight.shape, *further
    _run(name, node_weight, *map(_at, given), *map(ctypes.c_int64, sizes), *map(_at, found))
    return found


def _found(hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where `Likeliest` of `impls/cpp/likeliest.h` has its values, ids and share."""
    rows = len(hidden_ND)
    ids_NK = torch.empty(rows, k, dtype=torch.int64)
    return hidden_ND.new_empty(rows, k), ids_NK, hidden_ND.new_empty(rows)


def fused_softmax(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor, share_N: Tensor, most: int
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Total and gradients as `impls/cpp/fused_softmax.h` has them; targets in int64.

    Raises:
        IndexError: A target is none of the words.
    """
    given = hidden_ND.contiguous(), weight_VD, bias_V.contiguous(), targets_N.contiguous(), share_N.contiguous()
    gradients = torch.empty_like(given[0]), torch.empty_like(weight_VD), torch.empty_like(given[2])
    by_unit = cpp.fuses_by_unit(len(hidden_ND), most, weight_VD.shape[1])
    total, sizes = hidden_ND.new_empty(()), (len(hidden_ND), *weight_VD.shape, most, by_unit)
    pointers = *map(_at, given), *map(ctypes.c_int64, sizes), *map(_at, (total, *gradients))
    if not _run("fused_softmax_of_pointers", weight_VD, *pointers):
        raise IndexError(f"a target is none of the {len(weight_VD)} words")
    return total, gradients


def _call(name: str, words: Tensor, given: Sequence[Tensor], slots: int, *further: Tensor | None) -> None:
    """Of kernels that are given tokens, and at last the clusters' `ends_C`."""
    sizes = len(given[-1]), words.shape[-1], slots
    _run(name, words, *map(_at, given), *map(ctypes.c_int64, sizes), *map(_at, further))


def _run(name: str, words: Tensor, *given: object) -> bool:
    """Whether the kernel has done it; it may have refused to.

    Raises:
        MemoryError: There is none for what the kernel keeps.
    """
    library = _library()
    if library is None or not runs_on(words):
        raise Unsupported(f"{CPP} for {words.dtype} on {words.device}: allowed: torch.float32 on a CPU with a compiler")
    done = getattr(library, name)(ctypes.c_int(torch.get_num_threads()), *given)
    if done < 0:
        raise MemoryError(f"no memory for the {CPP}") if done == _NO_MEMORY else RuntimeError(f"{name} has failed")
    return bool(done)


def _at(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _library() -> ctypes.CDLL | None:
    return cpp.library("for_ctypes", ("-DTHREADS_OF_OPENMP",))
