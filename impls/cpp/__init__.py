"""Kernels of ours in C++ for CPUs: compiled for the processor at hand, where there is a compiler.

It takes 8 to 14 seconds on two CPUs. What is compiled is kept for later processes by all that decides what the compiler
makes of the sources, so that no other processor and no other version finds it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from vocabench.impls.cpp import kept
from vocabench.impls.forms import CPU, Form

CPP = Form("cpp", "C++ kernels", devices=(CPU,))
_HERE = Path(__file__).parent
# Which every interface is in front of.
_SOURCES = (
    *("cluster_losses", "cluster_products", "cluster_search", "fused_softmax", "matrix_products"),
    *("tree_paths", "tree_search", "upper_level", "weight_gradient"),
)
_COMPILE = ("-std=gnu++17", "-O3", "-march=native", "-fPIC", "-c")
_SECONDS = 120
_WIDEST = 16  # numbers that registers hold at once, at most
_TIMES, _DEPTH = 160, 192  # that a number of a product is multiplied, and numbers of a sum, for the unit for matrices
_FUSED_DIM, _FUSED_NUMBERS = 256, 3 * 2**14  # of vectors, and of a block of them, for fused softmax by that unit
_ARCH_PRCTL, _ASK_FOR, _TILES = 158, 0x1023, 18  # Linux's call for leave to use the registers of that unit
_FEW_WORDS, _LARGE = 1024, 2**25  # whose gradient the kernels make fastest, of so many multiply-adds at least
_PROJECTED = 128  # rows at most that the kernels project faster than frameworks' products do


class Paths(NamedTuple):
    """Tokens' paths from the root of a binary tree to their targets' leaves, as arrays of a framework's, int32.

    Attributes:
        index_NL, sign_NL: The nodes on each path, and where it turns: 1 left, -1 right, 0 beyond its end.
        place_N: Where its leaf stands among all, from left to right.
    """

    index_NL: Any
    sign_NL: Any
    place_N: Any


def compiler() -> str | None:
    """The C++ compiler that is taken, `CXX` or else g++; None where it is not there, or the processor is none that the
    kernels are for: x86 with AVX2, under Linux."""
    return shutil.which(os.environ.get("CXX", "g++")) if _has("avx2") else None


def version() -> str:
    """Of the compiler, as rows keep it as provenance; "none" without one."""
    found = compiler()
    if found is None:
        return "none"
    try:
        return f"{Path(found).name} {_run(found, '-dumpfullversion', '-dumpversion').strip()}"
    except (OSError, subprocess.SubprocessError):
        return Path(found).name


def formulation(form: Form | None) -> str:
    """Describe a layer's form for its row, with the unit that the kernels multiply large matrices by."""
    if form is None:
        return ""
    return f"{form.label}, large products by AMX" if form == CPP and multiplies_fastest() else form.label


def with_fused_softmax(forms: tuple[Form, ...], dim: int) -> tuple[Form, ...]:
    """A layer's forms, the fastest first, with the kernel of fused softmax where it takes vectors (dim,): the first."""
    return forms if dim % _WIDEST else (CPP, *forms)


def projects_fastest(rows: int | None) -> bool:
    """Whether to decode so many rows, None for any number, the kernel is fastest for a layer's upper level too."""
    return rows is not None and rows <= _PROJECTED


@cache
def multiplies_fastest() -> bool:
    """Whether the kernels multiply large float32 matrices faster than any framework's products: where the processor has
    a unit for matrices of bfloat16 (Intel's AMX), the compiler knows it, and the system lets this process use it."""
    found = compiler()
    if found is None or not _has("amx_tile", "amx_bf16", "avx512f"):
        return False
    try:
        known = "__AMX_BF16__" in _run(found, *_COMPILE[:-1], "-dM", "-E", "-x", "c++", os.devnull)
    except (OSError, subprocess.SubprocessError):
        return False
    return known and ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK_FOR, _TILES) == 0


def differentiates_fastest(tokens: int, words: int, dim: int) -> bool:
    """Whether the kernels make the gradient of a product of vectors (tokens, dim) with words, by these, faster than
    frameworks do that copy a factor for it: of few words, on AMD's processors with AVX-512, by a fifth."""
    return words <= _FEW_WORDS and tokens * words * dim >= _LARGE and _is_amds_avx512()


def formulation_of_products(words: int) -> str:
    """How a row tells of a layer what kernels make of its products with so many words, if they make no more of it."""
    if multiplies_fastest():
        return formulation(CPP)
    return f"gradients of large products by {CPP.label}" if words <= _FEW_WORDS and _is_amds_avx512() else ""


@cache
def _is_amds_avx512() -> bool:
    amd = any(line.startswith("vendor_id") and line.endswith("AuthenticAMD") for line in _processor())
    return compiler() is not None and _has("avx512f") and amd


def is_worth_splitting(rows: int, depth: int, columns: int) -> bool:
    """Whether they do for a product of (rows, depth) with (columns, depth): of others they spend too long on splitting
    its factors, or on writing what they are made into."""
    return rows * columns >= _TIMES * (rows + columns) and depth >= _DEPTH


def fuses_by_unit(tokens: int, most: int, dim: int) -> bool:
    """Whether fused softmax of vectors (dim,), of at most so many at a time, is fastest by the unit for matrices: its
    time for a word is the same for few vectors, where the others' is less."""
    return multiplies_fastest() and dim >= _FUSED_DIM and min(tokens, most) * dim >= _FUSED_NUMBERS


@cache
def library(
    interface: str,
    flags: tuple[str, ...] = (),
    links: tuple[str, ...] = (),
    load: Callable[[str], Any] = ctypes.CDLL,
    against: str = "",
) -> Any:
    """The kernels behind an interface, a source next to this file; None where there is no compiler, or with a warning
    where it fails.

    Args:
        interface: The name of the source.
        flags, links: What compiling and linking take further.
        load: What makes of a file that which is returned.
        against: The version of what else is compiled in, by its headers.
    """
    found = compiler()
    if found is None:
        return None
    try:
        texts = (path.read_text(encoding="utf-8") for path in sorted(_HERE.glob("*.[ch]*")))
        made_of = found, _run(found, "--version"), *_COMPILE, *flags, *links, against, *_processor(), *texts
        with kept.compiled(interface, made_of, partial(_compile, found, interface, flags, links)) as path:
            return load(path)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().partition("\n")[0]
        warnings.warn(f"no {CPP}, layers take their framework's products: {found}: {said}", stacklevel=2)
        return None


def _compile(found: str, interface: str, flags: Sequence[str], links: Sequence[str], folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        objects = {f"{scratch}/{name}.o": _HERE / f"{name}.cpp" for name in (*_SOURCES, interface)}
        with ThreadPoolExecutor() as several:
            for _ in several.map(lambda o: _run(found, *_COMPILE, *flags, str(objects[o]), "-o", o), objects):
                pass
        # Without OpenMP's library: where that of a framework is taken, its threads are shared.
        _run(found, "-shared", "-pthread", *objects, *links, "-o", f"{folder}/{kept.LIBRARY}")


@cache
def _has(*features: str) -> bool:
    """Whether the processor is x86, under Linux, and has them."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return any(set(features) <= set(line.split()) for line in _processor() if line.startswith("flags"))


@cache
def _processor() -> tuple[str, ...]:
    """What `-march=native` goes by, as Linux tells it of the first CPU."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    return tuple(line for line in first if line.startswith(("vendor_id", "cpu family", "model\t", "stepping", "flags")))


def _run(*command: str) -> str:
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    return run.stdout
