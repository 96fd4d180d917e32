"""Products of tokens with the words of their clusters by our kernels in C++ (`impls/cpp`), in the threads of PyTorch's
own OpenMP."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from impls import cpp
from impls.cpp import CPP
from impls.errors import Unsupported
from impls.on_torch._word_rows import WordRows

# Vectors, the row of each token, words, and of each cluster its first row, its size and one past its last token.
Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def known(dtype: torch.dtype) -> bool:
    """Whether there are kernels for vectors of `dtype` on this machine's CPU."""
    return dtype == torch.float32 and _library() is not None


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
    _call("scores_of_pointers", given, rows.slots, bias, scores_NS)
    return scores_NS


def scores_of_row(hidden_D: Tensor, words: Tensor, bias: Tensor | None, cluster_M: Tensor, rows: WordRows) -> Tensor:
    """(M, S) of one vector with the words of some clusters; -inf in empty slots."""
    scores_MS = hidden_D.new_empty(len(cluster_M), rows.slots)
    ends_M = torch.arange(1, len(cluster_M) + 1, dtype=torch.int32)
    clusters = rows.start_C[cluster_M], rows.size_C[cluster_M], ends_M
    given = hidden_D.contiguous(), torch.zeros_like(cluster_M), words, *clusters
    _call("scores_of_pointers", given, rows.slots, bias, scores_MS)
    return scores_MS


def gradients(
    dscores_NS: Tensor, hidden_ND: Tensor, row_N: Tensor, words: Tensor, ends_C: Tensor, rows: WordRows
) -> tuple[Tensor, Tensor]:
    """Those of `scores` by the hidden vectors (N, D), each of which is one token's, and by the words, in the shape of
    these."""
    dhidden_ND = torch.empty_like(hidden_ND, memory_format=torch.contiguous_format)
    dwords = torch.zeros_like(words) if rows.in_slab else torch.empty_like(words)
    given = hidden_ND.contiguous(), row_N.contiguous(), words, rows.start_C, rows.size_C, ends_C
    _call("gradients_of_pointers", given, rows.slots, dscores_NS.contiguous(), dhidden_ND, dwords)
    return dhidden_ND, dwords


def _call(name: str, given: Given, slots: int, *further: Tensor | None) -> None:
    library, (_, _, words, start_C, _, _) = _library(), given
    if library is None or not runs_on(words):
        raise Unsupported(f"{CPP} for {words.dtype} on {words.device}: allowed: torch.float32 on a CPU with a compiler")
    sizes = len(start_C), words.shape[-1], slots
    threads = ctypes.c_int(torch.get_num_threads())
    getattr(library, name)(threads, *map(_at, given), *map(ctypes.c_int64, sizes), *map(_at, further))


def _at(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _library() -> ctypes.CDLL | None:
    return cpp.library("for_ctypes", ("-fopenmp",))
