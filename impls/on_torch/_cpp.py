"""Kernels of ours in C++ for CPUs, `cluster_products.cpp`: compiled for the processor at hand, once a process.

There is no more to it than a C++ compiler and a second: the source includes nothing of PyTorch's, its threads are those
of PyTorch's own OpenMP, and what is compiled is gone with the process.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from impls.errors import Unsupported
from impls.on_torch._word_rows import WordRows

CPP = "C++ kernels"
_LANES = 16  # numbers at a time, of which vectors must have a multiple
_SOURCE = Path(__file__).with_name("cluster_products.cpp")
_COMPILE = ("-std=gnu++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-c")
_SECONDS = 60


def known(dim: int, dtype: torch.dtype) -> bool:
    """Whether there are kernels for vectors (D,) of `dtype`: on Linux, on an x86 processor with AVX2, where there is a
    compiler, `CXX` or else g++."""
    if dtype != torch.float32 or dim % _LANES or sys.platform != "linux":
        return False
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") and _library() is not None


def runs_on(words: Tensor) -> bool:
    """Whether the kernels take these words."""
    return words.device.type == "cpu" and words.dtype == torch.float32 and words.is_contiguous()


def scores(hidden_ND: Tensor, words: Tensor, ends_C: Tensor, rows: WordRows) -> Tensor:
    """(N, S) products of each token, sorted by cluster, with the words of its cluster; zero in empty slots.

    Args:
        hidden_ND: Sorted.
        words: (C, S, D) or (V, D) word vectors, as `rows` has it.
        ends_C: (C,) int32: one past the last token of each cluster.
    """
    hidden_ND = hidden_ND.contiguous()
    scores_NS = hidden_ND.new_zeros(len(hidden_ND), rows.slots)
    _compiled(words).cluster_scores(
        torch.get_num_threads(), *_at(hidden_ND, words, rows.start_C, rows.size_C, ends_C), *_sizes(words, rows),
        *_at(scores_NS),
    )  # fmt: skip
    return scores_NS


def gradients(
    dscores_NS: Tensor, hidden_ND: Tensor, words: Tensor, ends_C: Tensor, rows: WordRows
) -> tuple[Tensor, Tensor]:
    """Those of `scores` by the hidden vectors (N, D) and by the words, in the shape of these."""
    dscores_NS, hidden_ND = dscores_NS.contiguous(), hidden_ND.contiguous()
    dhidden_ND = torch.empty_like(hidden_ND)
    dwords = torch.zeros_like(words) if rows.in_slab else torch.empty_like(words)
    _compiled(words).cluster_gradients(
        torch.get_num_threads(), *_at(dscores_NS, hidden_ND, words, rows.start_C, rows.size_C, ends_C),
        *_sizes(words, rows), *_at(dhidden_ND, dwords),
    )  # fmt: skip
    return dhidden_ND, dwords


def _at(*tensors: Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def _sizes(words: Tensor, rows: WordRows) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(size) for size in (len(rows.size_C), words.shape[-1], rows.slots)]


def _compiled(words: Tensor) -> ctypes.CDLL:
    library = _library()
    if library is None or not runs_on(words):
        raise Unsupported(f"{CPP} for {words.dtype} on {words.device}: allowed: torch.float32 on a CPU with a compiler")
    return library


@cache
def _library() -> ctypes.CDLL | None:
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        compiled, linked = f"{folder}/kernels.o", f"{folder}/kernels.so"
        try:
            _run(compiler, *_COMPILE, str(_SOURCE), "-o", compiled)
            # Without OpenMP's library: the one that PyTorch has loaded is to be found, and its threads shared.
            _run(compiler, "-shared", compiled, "-o", linked)
            return ctypes.CDLL(linked)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().partition("\n")[0]
            warnings.warn(f"no C++ kernels, layers take PyTorch's products: {compiler}: {said}", stacklevel=2)
            return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
