"""The manylinux tag of a wheel, from the symbol versions and libraries that its libraries need.

A tag names a version of glibc (PEP 600). Systems with this glibc have libraries of GCC of about the same age. Which
symbol versions of those a tag allows is here as in the policies of auditwheel.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

Version = tuple[int, ...]

_ALLOWED: dict[Version, dict[str, Version]] = {  # by version of glibc
    (2, 17): {"GLIBCXX": (3, 4, 19), "CXXABI": (1, 3, 7), "GCC": (4, 8, 0)},
    (2, 24): {"GLIBCXX": (3, 4, 22), "CXXABI": (1, 3, 10), "GCC": (4, 8, 0)},
    (2, 27): {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)},
    (2, 28): {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)},
    (2, 31): {"GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (7, 0, 0)},
    (2, 34): {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)},
    (2, 35): {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
    (2, 36): {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
    (2, 38): {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
    (2, 39): {"GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14, 0, 0)},
    (2, 41): {"GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14, 0, 0)},
}
_SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2"}
_OF_FRAMEWORKS = {"libtensorflow_framework.so.2"}  # loaded by the framework before it loads the kernels
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_DYNAMIC, _VERSIONS_NEEDED = 6, 0x6FFFFFFE  # types of sections
_NEEDED = 1  # tag of a dynamic entry


class Needs(NamedTuple):
    """What a library needs from others.

    Attributes:
        libraries: Their names.
        versions: Versions of their symbols, such as "GLIBC_2.34".
    """

    libraries: frozenset[str]
    versions: frozenset[str]


def needs(library: Path) -> Needs:
    """Return what an ELF library for x86-64 needs.

    Raises:
        ValueError: The file is no such library.
    """
    data = library.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18) != (62,):
        raise ValueError(f"library {library}: allowed: ELF for x86-64")
    start, size, count = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58)
    sections = [_SECTION.unpack_from(data, start + size * number) for number in range(count)]
    libraries: set[str] = set()
    versions: set[str] = set()
    for _, kind, _, _, offset, length, link, *_ in sections:
        if kind == _DYNAMIC:
            libraries |= {_name(data, sections[link][4], at) for at in _needed(data[offset : offset + length])}
        elif kind == _VERSIONS_NEEDED:
            versions |= {_name(data, sections[link][4], at) for at in _versions(data, offset)}
    return Needs(frozenset(libraries), frozenset(versions))


def tag(libraries: Iterable[Path], wanted: str = "") -> str:
    """Return the platform tag of a wheel with these libraries: the least that they allow, or the one that is wanted.

    Raises:
        ValueError: The libraries need more than the wanted tag allows, or than any does.
    """
    versions: set[str] = set()
    for library in libraries:
        needed = needs(library)
        versions |= needed.versions
        if others := sorted(needed.libraries - _SYSTEM - _OF_FRAMEWORKS):
            allowed = ", ".join(sorted(_SYSTEM | _OF_FRAMEWORKS))
            raise ValueError(f"library {library.name} needs {', '.join(others)}: allowed: {allowed}")
    tags = {f"manylinux_{major}_{minor}_x86_64": (major, minor) for major, minor in _ALLOWED}
    if wanted and wanted not in tags:
        raise ValueError(f"tag {wanted!r}: allowed: {', '.join(tags)}")
    for candidate in [wanted] if wanted else tags:
        if not any(_excess(versions, tags[candidate])):
            return candidate
    newest = wanted or max(tags, key=tags.__getitem__)
    excess = ", ".join(sorted(_excess(versions, tags[newest])))
    raise ValueError(f"tag {newest!r} does not allow {excess}, which the libraries need")


def _excess(versions: Iterable[str], glibc: Version) -> Iterator[str]:
    """Yield the symbol versions that the tag of a version of glibc does not allow."""
    allowed = {"GLIBC": glibc, **_ALLOWED[glibc]}
    for version in versions:
        name, _, number = version.partition("_")
        parts = number.split(".")
        if not all(part.isdecimal() for part in parts) or tuple(map(int, parts)) > allowed.get(name, ()):
            yield version


def _needed(dynamic: bytes) -> Iterator[int]:
    """Yield the positions of the names of needed libraries."""
    for kind, value in struct.iter_unpack("<QQ", dynamic):
        if kind == _NEEDED:
            yield value


def _versions(data: bytes, at: int) -> Iterator[int]:
    """Yield the positions of the names of needed symbol versions.

    They are a chain of libraries, each with a chain of versions.
    """
    while True:
        _, count, _, first, following = struct.unpack_from("<HHIII", data, at)
        version_at = at + first
        for _ in range(count):
            _, _, _, name, offset = struct.unpack_from("<IHHII", data, version_at)
            yield name
            version_at += offset
        if not following:
            return
        at += following


def _name(data: bytes, names: int, at: int) -> str:
    start = names + at
    return data[start : data.index(b"\0", start)].decode()
