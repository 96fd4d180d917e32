"""The compiled libraries of a wheel: one for each interface and level of x86-64, with their manifest."""

from __future__ import annotations

import importlib
import importlib.metadata
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from vocabench.impls.cpp import compilation, prebuilt
from vocabench.impls.cpp.compilation import Interface
from vocabench.impls.cpp.prebuilt import Prebuilt

# The frameworks, and the distribution whose version decides whether a library fits. PyTorch's fits any version.
FRAMEWORKS = {"torch": "", "tensorflow": "tensorflow-cpu", "jax": "jaxlib"}


def interface(framework: str, constraints: Path) -> Interface:
    """Return a framework's interface, for the version in `constraints`.

    Raises:
        ValueError: Another version is installed.
    """
    if name := FRAMEWORKS[framework]:
        installed, pinned = importlib.metadata.version(name), _pinned(name, constraints)
        if installed != pinned:
            raise ValueError(f"{name} {installed} is installed: allowed: {pinned}, the version in {constraints.name}")
    return importlib.import_module(f"vocabench.impls.on_{framework}.ops.cpp_kernels").interface()


def build(compiler: str, interfaces: Sequence[Interface], levels: Iterable[str], folder: Path) -> None:
    """Compile a library for each interface and level, and write them to a folder with their manifest."""
    records = []
    for level in levels:
        with tempfile.TemporaryDirectory() as scratch:
            kernels = Path(scratch) / "kernels"
            kernels.mkdir()
            compilation.compile_kernels(compiler, level, kernels)
            for each in interfaces:
                record = Prebuilt(
                    each.name, level, each.against, prebuilt.digest(each, level), compilation.version(compiler)
                )
                objects = Path(scratch) / each.name
                objects.mkdir()
                compilation.compile_interface(compiler, level, each, objects)
                compilation.link(compiler, (objects, kernels), each.links, folder / record.file)
                records.append(record)
    prebuilt.write(folder, records)


def _pinned(name: str, constraints: Path) -> str:
    for line in constraints.read_text(encoding="utf-8").splitlines():
        key, _, version = line.partition("==")
        if key.replace("_", "-") == name:
            return version
    return "none"
