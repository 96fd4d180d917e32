"""C++ kernels for CPUs, compiled for the present processor if there is a compiler, and otherwise taken from the wheel.

The kernels are compiled once for all frameworks and linked with the interface of each. Objects and libraries are cached
for later processes under a key of everything that determines the compiler's output, so that another processor or
version does not use them. Without a compiler, a library that the installed wheel contains is used (`prebuilt.py`).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from vocabench.impls import cpus
from vocabench.impls.cpp import compilation, library_cache, prebuilt, processor
from vocabench.impls.cpp.compilation import Interface
from vocabench.impls.errors import Unsupported
from vocabench.impls.forms import CPU, Form
from vocabench.impls.scratch import scratch

CPP = Form("cpp", "C++ kernels", devices=(CPU,))
WHERE = "on a CPU with a compiler or prebuilt kernels"

_LIBRARY = "kernels.so"
_PROCESSOR = "native"  # for which a compiler found at run time compiles
_CPU_SECONDS = 40  # of compiling all kernels
_OFF = "none"  # the value of CXX that turns the kernels off
_NO_KERNELS = f"no {CPP}, layers take their framework's products"

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
    return shutil.which(_compiler_name()) if processor.has("avx2") else None


def version(interface: Interface) -> str:
    """Return name and version of the compiler of an interface's kernels for the provenance of rows.

    "none" without kernels, with the reason in parentheses.
    """
    path = compiler()
    if path is not None:
        return compilation.version(path)
    try:
        found = _prebuilt(interface)
    except Unsupported as error:
        return f"none ({error})"
    return f"{found.compiler} (prebuilt kernels for {found.level})"


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
    allows this process to use it. Prebuilt kernels do not use the unit.
    """
    path = compiler()
    if path is None or not processor.has("amx_tile", "amx_bf16", "avx512f"):
        return False
    try:
        macros = compilation.run(path, *compilation.flags(_PROCESSOR), "-dM", "-E", "-x", "c++", os.devnull)
        supported = "__AMX_BF16__" in macros
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
    amd = any(line.startswith("vendor_id") and line.endswith("AuthenticAMD") for line in processor.lines())
    return amd and processor.has("avx512f") and (compiler() is not None or prebuilt.V4 in prebuilt.available())


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
def library(interface: Interface, load: Callable[[str], Any] = ctypes.CDLL) -> Any:
    """Return the kernels with an interface.

    None if there is neither a compiler nor a prebuilt library, with a line on standard error that says why, or, with a
    warning, if compiling or loading fails.

    Args:
        interface: The interface.
        load: Function that loads the library from its path and makes the returned value.
    """
    path = compiler()
    return _load_prebuilt(interface, load) if path is None else _load_compiled(path, interface, load)


def _compiler_name() -> str:
    return os.environ.get("CXX", "g++")


def _compile_kernels(path: str, folder: Path) -> None:
    """Compile the kernels to objects in a folder, with a line on standard error: the caller seems to hang otherwise."""
    seconds = max(5, 5 * round(_CPU_SECONDS / cpus.usable() / 5))
    _tell(f"compiling the {CPP} for this processor with {Path(path).name}: about {seconds} s, once")
    compilation.compile_kernels(path, _PROCESSOR, folder)


def _load_compiled(path: str, interface: Interface, load: Callable[[str], Any]) -> Any:
    """Return the kernels with an interface, compiled now or by an earlier process; None, with a warning, on failure."""
    try:
        kernels = path, compilation.run(path, "--version"), *processor.lines(), *compilation.kernel_inputs(_PROCESSOR)
        own = *compilation.interface_inputs(interface), *interface.flags, *interface.links, interface.against

        def compile_to(folder: Path) -> None:
            with scratch("build") as objects, ThreadPoolExecutor(1) as executor:
                compiling = executor.submit(compilation.compile_interface, path, _PROCESSOR, interface, objects)
                with library_cache.compiled("objects", kernels, partial(_compile_kernels, path)) as kernel_objects:
                    compiling.result()
                    compilation.link(path, (objects, kernel_objects), interface.links, folder / _LIBRARY)

        with library_cache.compiled(interface.name, (*kernels, *own), compile_to) as folder:
            return load(f"{folder}/{_LIBRARY}")
    except (OSError, subprocess.SubprocessError) as error:
        _warn(path, error)
        return None


def _load_prebuilt(interface: Interface, load: Callable[[str], Any]) -> Any:
    """Return the prebuilt kernels with an interface; None, with a message, if there are none that can be loaded."""
    try:
        file = prebuilt.FOLDER / _prebuilt(interface).file
    except Unsupported as error:
        _tell(f"{_NO_KERNELS}: {error}")
        return None
    try:
        return load(str(file))
    except OSError as error:
        _warn(str(file), error)
        return None


def _prebuilt(interface: Interface) -> prebuilt.Prebuilt:
    """Return the prebuilt library for a machine without a compiler.

    Raises:
        Unsupported: There is none, the processor does not support the kernels, or `CXX=none` turns them off.
    """
    if _compiler_name() == _OFF:
        raise Unsupported(f"CXX is {_OFF!r}")
    if not processor.has("avx2"):
        raise Unsupported("they need Linux on an x86 processor with AVX2")
    try:
        return prebuilt.chosen(interface)
    except Unsupported as error:
        raise Unsupported(f"there is no compiler {_compiler_name()!r}, and {error}") from None


def _tell(line: str) -> None:
    print(f"vocabench: {line}", file=sys.stderr, flush=True)


def _warn(source: str, error: Exception) -> None:
    reason = _text(getattr(error, "stderr", None) or str(error)).strip().partition("\n")[0]
    warnings.warn(f"{_NO_KERNELS}: {source}: {reason}", stacklevel=4)


def _text(output: str | bytes) -> str:
    """Return a compiler's output as text. It is bytes if the compiler took too long."""
    return output if isinstance(output, str) else output.decode(errors="replace")
