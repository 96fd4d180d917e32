"""C++ kernels for CPUs, compiled for the present processor if there is a compiler.

The kernels are compiled once for all frameworks and linked with the interface of each. Objects and libraries are cached
for later processes under a key of everything that determines the compiler's output, so that another processor or
version does not use them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from vocabench.impls import cpus
from vocabench.impls.cpp import library_cache
from vocabench.impls.forms import CPU, Form
from vocabench.impls.scratch import scratch

CPP = Form("cpp", "C++ kernels", devices=(CPU,))

_HERE = Path(__file__).parent
_LIBRARY = "kernels.so"
_KERNELS = (  # linked into the library of each interface; those that take the longest to compile come first
    *("tree_search", "fused_softmax", "cluster_search", "cluster_losses", "tree_paths", "matrix_products"),
    *("word_steps", "upper_level", "cluster_products", "weight_gradient"),
)
_COMPILE = ("-std=gnu++17", "-march=native", "-fPIC", "-fvisibility=hidden", "-c")
_OPTIMIZE = ("-O3",)
_OPTIMIZE_INTERFACE = ("-O1",)  # interfaces only check arguments, and the headers of XLA compile in half the time
_CPU_SECONDS = 40  # of compiling all kernels
_TIMEOUT_SECONDS = 300  # a file takes some seconds, and many times that on a busy machine

_WIDEST_VECTOR = 16  # most float32 elements of a register
# The matrix unit is worth its preparation if each element is used in so many multiplications, and sums are this deep.
_LEAST_USES, _LEAST_DEPTH = 160, 192
# Fused softmax uses the matrix unit for vectors at least this wide, in blocks with at least so many elements.
_UNIT_DIM, _UNIT_BLOCK = 256, 3 * 2**14
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18  # Linux's request for permission to use AMX registers
# The gradient with respect to at most so many words is fastest by the kernels, from so many multiply-adds on.
_FEW_WORDS, _LARGE_PRODUCT = 1024, 2**25
_FEW_ROWS = 128  # most rows for which the kernels project faster than the products of the frameworks


class Paths(NamedTuple):
    """Paths of tokens from the root of a binary tree to their targets' leaves, as int32 arrays of a framework.

    Attributes:
        index_NL: Nodes on each path.
        sign_NL: Turns of each path: 1 left, -1 right, 0 beyond its end.
        place_N: Position of the target's leaf among all leaves, from left to right.
    """

    index_NL: Any
    sign_NL: Any
    place_N: Any


def compiler() -> str | None:
    """Return the path of the C++ compiler, `CXX` or else g++.

    None if it is not installed, or if the kernels do not support the machine: they need Linux on x86 with AVX2.
    """
    return shutil.which(os.environ.get("CXX", "g++")) if _has("avx2") else None


def version() -> str:
    """Return the name and version of the compiler for the provenance of rows; "none" without a compiler."""
    path = compiler()
    if path is None:
        return "none"
    try:
        return f"{Path(path).name} {_run(path, '-dumpfullversion', '-dumpversion').strip()}"
    except (OSError, subprocess.SubprocessError):
        return Path(path).name


def formulation(form: Form | None) -> str:
    """Describe a layer's form for its row, including the unit on which the kernels multiply large matrices."""
    if form is None:
        return ""
    return f"{form.label}, large products by AMX" if form == CPP and multiplies_fastest() else form.label


def with_fused_softmax(forms: tuple[Form, ...], dim: int) -> tuple[Form, ...]:
    """Put the kernel of fused softmax in front of a layer's forms if it supports vectors (dim,)."""
    return forms if dim % _WIDEST_VECTOR else (CPP, *forms)


def projects_fastest(rows: int | None) -> bool:
    """Return whether the kernel is also fastest for the upper level when decoding `rows` rows, None for any number."""
    return rows is not None and rows <= _FEW_ROWS


@cache
def multiplies_fastest() -> bool:
    """Return whether the kernels multiply large float32 matrices faster than the frameworks do.

    This is so if the processor has a matrix unit for bfloat16 (Intel AMX), the compiler supports it, and the system
    allows this process to use it.
    """
    path = compiler()
    if path is None or not _has("amx_tile", "amx_bf16", "avx512f"):
        return False
    try:
        supported = "__AMX_BF16__" in _run(path, *_COMPILE[:-1], "-dM", "-E", "-x", "c++", os.devnull)
    except (OSError, subprocess.SubprocessError):
        return False
    return supported and ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0


def differentiates_fastest(tokens: int, words: int, dim: int) -> bool:
    """Return whether the kernels are fastest for the gradient of dot products with respect to the words.

    The frameworks copy a factor first. For few words on AMD processors with AVX-512, the kernels are faster by a fifth.

    Args:
        tokens: Number of hidden vectors (tokens, dim).
        words: Number of words (words, dim).
        dim: Width of the vectors.
    """
    return words <= _FEW_WORDS and tokens * words * dim >= _LARGE_PRODUCT and _is_amds_avx512()


def formulation_of_products(words: int) -> str:
    """Describe for a row how kernels compute products with `words` words, in layers without other use of kernels."""
    if multiplies_fastest():
        return formulation(CPP)
    return f"gradients of large products by {CPP.label}" if words <= _FEW_WORDS and _is_amds_avx512() else ""


@cache
def _is_amds_avx512() -> bool:
    amd = any(line.startswith("vendor_id") and line.endswith("AuthenticAMD") for line in _processor())
    return compiler() is not None and _has("avx512f") and amd


def is_worth_splitting(rows: int, depth: int, columns: int) -> bool:
    """Return whether the matrix unit is fastest for a product of (rows, depth) with (columns, depth).

    Smaller products spend too much time on splitting the factors or on writing the parts.
    """
    return rows * columns >= _LEAST_USES * (rows + columns) and depth >= _LEAST_DEPTH


def fuses_by_unit(tokens: int, most: int, dim: int) -> bool:
    """Return whether fused softmax is fastest on the matrix unit.

    With the unit, the time per word does not shrink with the number of tokens, as it does with the vector units.

    Args:
        tokens: Number of hidden vectors (tokens, dim).
        most: Most vectors in a block.
        dim: Width of the vectors.
    """
    return multiplies_fastest() and dim >= _UNIT_DIM and min(tokens, most) * dim >= _UNIT_BLOCK


@cache
def library(
    interface: str,
    flags: tuple[str, ...] = (),
    links: tuple[str, ...] = (),
    load: Callable[[str], Any] = ctypes.CDLL,
    against: str = "",
    threads: str = "helper_threads",
) -> Any:
    """Return the kernels with an interface; None without a compiler, or, with a warning, if it fails.

    Args:
        interface: Name of a source in this folder, without its suffix.
        flags: Further flags for compiling the interface.
        links: Further flags for linking.
        load: Function that loads the library from its path and makes the returned value.
        against: Version of the headers of other software that the interface includes.
        threads: Name of the source that determines whose threads the kernels use, without its suffix.
    """
    path = compiler()
    if path is None:
        return None
    try:
        headers = sorted(header.name for header in _HERE.glob("*.h"))
        texts = _texts(*headers, *(f"{kernel}.cpp" for kernel in _KERNELS))
        kernels = path, _run(path, "--version"), *_COMPILE, *_OPTIMIZE, *_processor(), *texts
        own_texts = _texts(f"{interface}.cpp", f"{threads}.cpp")
        inputs = *kernels, *own_texts, *_OPTIMIZE_INTERFACE, *flags, *links, against

        def compile_to(folder: Path) -> None:
            own = {interface: (*_OPTIMIZE_INTERFACE, *flags), threads: _OPTIMIZE}
            with scratch("build") as objects, ThreadPoolExecutor(1) as executor:
                compiling = executor.submit(_compile, path, own, objects)
                with library_cache.compiled("objects", kernels, partial(_compile_kernels, path)) as kernel_objects:
                    compiling.result()
                    _link(path, (objects, kernel_objects), links, folder)

        with library_cache.compiled(interface, inputs, compile_to) as folder:
            return load(f"{folder}/{_LIBRARY}")
    except (OSError, subprocess.SubprocessError) as error:
        reason = _text(getattr(error, "stderr", None) or str(error)).strip().partition("\n")[0]
        warnings.warn(f"no {CPP}, layers take their framework's products: {path}: {reason}", stacklevel=2)
        return None


def _texts(*names: str) -> list[str]:
    return [(_HERE / name).read_text(encoding="utf-8") for name in names]


def _compile_kernels(path: str, folder: Path) -> None:
    """Compile the kernels to objects in a folder, with a line on standard error: the caller seems to hang otherwise."""
    seconds = max(5, 5 * round(_CPU_SECONDS / cpus.usable() / 5))
    print(
        f"vocabench: compiling the {CPP} for this processor with {Path(path).name}: about {seconds} s, once",
        file=sys.stderr,
        flush=True,
    )
    _compile(path, dict.fromkeys(_KERNELS, _OPTIMIZE), folder)


def _compile(path: str, flags: Mapping[str, Sequence[str]], folder: Path) -> None:
    """Compile sources of this folder, each with its flags, to objects in another folder."""

    def compile_one(name: str) -> None:
        _run(path, *_COMPILE, *flags[name], f"{_HERE}/{name}.cpp", "-o", f"{folder}/{name}.o")

    with ThreadPoolExecutor(cpus.usable()) as executor:
        for _ in executor.map(compile_one, flags):
            pass


def _link(path: str, folders: Iterable[Path], links: Sequence[str], to: Path) -> None:
    """Link the objects in some folders to a library in another one."""
    objects = (str(found) for folder in folders for found in sorted(folder.glob("*.o")))
    # OpenMP's library is not linked: the runtime that a framework has loaded is used, with its threads.
    _run(path, "-shared", "-pthread", *objects, *links, "-o", f"{to}/{_LIBRARY}")


@cache
def _has(*features: str) -> bool:
    """Return whether this is an x86 processor under Linux with these features."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return any(set(features) <= set(line.split()) for line in _processor() if line.startswith("flags"))


@cache
def _processor() -> tuple[str, ...]:
    """Return the lines that Linux reports about the first CPU and that `-march=native` depends on."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    return tuple(line for line in first if line.startswith(("vendor_id", "cpu family", "model\t", "stepping", "flags")))


def _text(output: str | bytes) -> str:
    """Return a compiler's output as text. It is bytes if the compiler took too long."""
    return output if isinstance(output, str) else output.decode(errors="replace")


def _run(*command: str) -> str:
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    return run.stdout
