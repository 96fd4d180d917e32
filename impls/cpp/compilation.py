"""How the kernels are compiled and linked with an interface, for the present processor or for a level of x86-64."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from vocabench.impls import cpus

KERNELS = (  # linked into the library of each interface; those that take the longest to compile come first
    *("tree_search", "fused_softmax", "cluster_search", "cluster_losses", "tree_paths", "matrix_products"),
    *("word_steps", "upper_level", "cluster_products", "weight_gradient", "nucleus"),
)
_HERE = Path(__file__).parent
_OPTIMIZE = ("-O3",)
_OPTIMIZE_INTERFACE = ("-O1",)  # interfaces only check arguments, and the headers of XLA compile in half the time
_TIMEOUT_SECONDS = 300  # a file takes some seconds, and many times that on a busy machine


class Interface(NamedTuple):
    """A way to call the kernels.

    Attributes:
        name: Name of a source in this folder, without its suffix.
        threads: Name of the source that determines whose threads the kernels use, without its suffix.
        flags: Further flags for compiling the interface.
        links: Further flags for linking.
        against: Name and version of other software whose headers the interface includes. A library is never loaded
            with another version.
    """

    name: str
    threads: str = "helper_threads"
    flags: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    against: str = ""


def flags(march: str) -> tuple[str, ...]:
    """Return the flags with which every source is compiled.

    Args:
        march: The processor to compile for, as GCC's option `-march` names it.
    """
    return "-std=gnu++17", f"-march={march}", "-fPIC", "-fvisibility=hidden"


def kernel_inputs(march: str) -> tuple[str, ...]:
    """Return everything in this package that determines the objects of the kernels: flags and sources."""
    headers = sorted(header.name for header in _HERE.glob("*.h"))
    return *flags(march), *_OPTIMIZE, *_texts(*headers, *(f"{kernel}.cpp" for kernel in KERNELS))


def interface_inputs(interface: Interface) -> tuple[str, ...]:
    """Return everything in this package that determines an interface's own objects, besides headers."""
    return *_OPTIMIZE_INTERFACE, *_texts(f"{interface.name}.cpp", f"{interface.threads}.cpp")


def compile_kernels(compiler: str, march: str, folder: Path) -> None:
    """Compile the kernels to objects in a folder."""
    compile_sources(compiler, march, dict.fromkeys(KERNELS, _OPTIMIZE), folder)


def compile_interface(compiler: str, march: str, interface: Interface, folder: Path) -> None:
    """Compile an interface and its threads to objects in a folder."""
    own = {interface.name: (*_OPTIMIZE_INTERFACE, *interface.flags), interface.threads: _OPTIMIZE}
    compile_sources(compiler, march, own, folder)


def compile_sources(compiler: str, march: str, sources: Mapping[str, Sequence[str]], folder: Path) -> None:
    """Compile sources of this package, each with its own flags, to objects in a folder."""

    def compile_one(name: str) -> None:
        run(compiler, *flags(march), "-c", *sources[name], f"{_HERE}/{name}.cpp", "-o", f"{folder}/{name}.o")

    with ThreadPoolExecutor(cpus.usable()) as executor:
        for _ in executor.map(compile_one, sources):
            pass


def link(compiler: str, folders: Iterable[Path], links: Sequence[str], library: Path) -> None:
    """Link the objects in some folders to a library."""
    objects = (str(found) for folder in folders for found in sorted(folder.glob("*.o")))
    # OpenMP's library is not linked: the runtime that a framework has loaded is used, with its threads.
    run(compiler, "-shared", "-pthread", *objects, *links, "-o", str(library))


def version(compiler: str) -> str:
    """Return the name and version of a compiler."""
    try:
        return f"{Path(compiler).name} {run(compiler, '-dumpfullversion', '-dumpversion').strip()}"
    except (OSError, subprocess.SubprocessError):
        return Path(compiler).name


def run(*command: str) -> str:
    """Return the output of a command.

    Raises:
        OSError: It cannot be started.
        subprocess.SubprocessError: It fails, or takes too long.
    """
    finished = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    return finished.stdout


def _texts(*names: str) -> list[str]:
    return [(_HERE / name).read_text(encoding="utf-8") for name in names]
