"""Libraries of the kernels that a wheel contains, for machines without a compiler.

A library is compiled for a level of x86-64 instead of one processor. Its record in the manifest holds a digest of the
sources and flags, and the version of the framework whose headers it includes. It is used only if both are those of the
installation, and if the processor has all instructions of the level. The interface of PyTorch includes no header of
PyTorch: it is called by ctypes, with pointers and sizes, and fits any version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from vocabench.impls.cache_folder import sha256_of_file
from vocabench.impls.cpp import compilation, processor
from vocabench.impls.cpp.compilation import Interface
from vocabench.impls.errors import BadInput, Unsupported

FOLDER = Path(__file__).parent / "libraries"
MANIFEST = "manifest.json"
V3, V4 = "x86-64-v3", "x86-64-v4"
_V3_FEATURES = (  # as Linux names them; "abm" includes LZCNT
    *("cx16", "lahf_lm", "popcnt", "ssse3", "sse4_1", "sse4_2"),
    *("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"),
)
LEVELS = {  # the best first
    V4: (*_V3_FEATURES, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    V3: _V3_FEATURES,
}


class Prebuilt(msgspec.Struct, frozen=True):
    """The record of a library in the manifest.

    Attributes:
        interface: The name of its interface.
        level: The level of x86-64 that it was compiled for.
        against: The version of other software that it was compiled for, as in `Interface`.
        sources: Digest of the sources and flags (`digest`).
        compiler: Name and version of the compiler.
        sha256: Checksum of the file.
    """

    interface: str
    level: str
    against: str
    sources: str
    compiler: str
    sha256: str = ""

    @property
    def file(self) -> str:
        return f"{self.interface}.{self.level}.so"


def digest(interface: Interface, level: str) -> str:
    """Return a digest of the sources and flags of a library, those of other software excepted."""
    inputs = *compilation.kernel_inputs(level), *compilation.interface_inputs(interface)
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()


def levels() -> tuple[str, ...]:
    """Return the levels whose instructions this processor has, the best first."""
    return tuple(level for level, features in LEVELS.items() if processor.has(*features))


def available() -> frozenset[str]:
    """Return the levels of the installation's libraries that this processor can execute."""
    try:
        return frozenset(record.level for record in _manifest()) & frozenset(levels())
    except Unsupported:
        return frozenset()


def chosen(interface: Interface) -> Prebuilt:
    """Return the best library with an interface for this installation and processor.

    Raises:
        Unsupported: There is none. The message says why.
    """
    known = [record for record in _manifest() if record.interface == interface.name]
    if not known:
        raise Unsupported(f"the prebuilt kernels have no library {interface.name!r}")
    fitting = [record for record in known if record.sources == digest(interface, record.level)]
    if not fitting:
        raise Unsupported("the prebuilt kernels were compiled from other sources")
    by_level = {record.level: record for record in fitting if record.against == interface.against}
    if not by_level:
        others = " or ".join(sorted({record.against for record in fitting}))
        raise Unsupported(f"the prebuilt kernels are for {others}, not for {interface.against}")
    best = next((by_level[level] for level in levels() if level in by_level), None)
    if best is None:
        raise Unsupported(f"the prebuilt kernels need a processor of level {' or '.join(by_level)}")
    try:
        damaged = sha256_of_file(FOLDER / best.file) != best.sha256
    except BadInput as error:
        raise Unsupported(f"prebuilt kernels: {error}") from None
    if damaged:
        raise Unsupported(f"the prebuilt library {FOLDER / best.file} is damaged")
    return best


def write(folder: Path, records: Sequence[Prebuilt]) -> None:
    """Write the manifest of the libraries in a folder, with their checksums."""
    complete = [msgspec.structs.replace(record, sha256=sha256_of_file(folder / record.file)) for record in records]
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(complete)) + b"\n")


def _manifest() -> list[Prebuilt]:
    path = FOLDER / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Prebuilt])
    except FileNotFoundError:
        raise Unsupported("this installation has no prebuilt kernels") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise Unsupported(f"the manifest of the prebuilt kernels, {path}, is damaged: {error}") from None
