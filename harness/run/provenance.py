"""Provenance of rows: code, library versions and machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from vocabench.impls import plugins

_ROOT = Path(__file__).resolve().parents[2]
_LIBRARIES = ("numpy", "scipy", "pandas")
_SOURCES = (".py", ".toml", ".cpp", ".h")
_CPUINFO, _DETAILS = Path("/proc/cpuinfo"), {"family": "cpu family", "model": "model"}
# Flags of Linux and the instruction sets that decide how fast matrix products are.
_INSTRUCTION_SETS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 BF16", "amx_bf16": "AMX"}


def code_fingerprint() -> str:
    """Return the `fingerprint` of this code at the time of the first call, which identifies the code of a run."""
    return fingerprint_with(os.environ.get(plugins.VARIABLE, ""))


@cache
def fingerprint_with(paths: str) -> str:
    """Return `code_fingerprint` with the plugins at `paths`, as the environment variable lists them."""
    return fingerprint()


def fingerprint(root: Path = _ROOT) -> str:
    """Return twelve hexadecimal digits that change with any source or suite file of harness, impls and plugins."""
    digest = hashlib.sha256()
    for path in sorted(_sources(root)):
        with suppress(FileNotFoundError):  # a dangling link, such as an editor's lock, or a file renamed meanwhile
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    for place, path in sorted(plugins.files().items()):
        with suppress(FileNotFoundError):
            digest.update(place.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _sources(root: Path) -> Iterator[Path]:
    for package in ("harness", "impls"):
        for folder, _, names in os.walk(root / package):
            yield from (Path(folder, name) for name in names if name.endswith(_SOURCES))


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def code() -> Mapping[str, Any]:
    """Return the commit, whether the tree differs from it, the fingerprint, and the versions of plugins, if any.

    Outside a checkout the commit is empty and "dirty" is None. A plugin without a version is code that no commit holds.
    """
    return _code_with(os.environ.get(plugins.VARIABLE, ""))


@cache
def _code_with(paths: str) -> Mapping[str, Any]:
    top = _git("rev-parse", "--show-toplevel")
    inside = bool(top) and Path(top).resolve() == _ROOT
    dirty = bool(_git("status", "--porcelain", "--", "harness", "impls", "benchmarks")) if inside else None
    versions = {plugin.name: plugin.version for plugin in plugins.plugins()}
    return {
        "commit": _git("rev-parse", "HEAD") if inside else "",
        "dirty": True if "" in versions.values() else dirty,
        "fingerprint": code_fingerprint(),
    } | ({"plugins": versions} if versions else {})


@cache
def machine() -> Mapping[str, Any]:
    return {
        "cpu": _cpu_name(),
        "instruction_sets": _instruction_sets(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in _LIBRARIES if _has(name)}


def _has(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _cpu_name() -> str:
    """Return the processor's name with family and model: virtual machines use one name for several generations."""
    fields = _cpuinfo()
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    details = [f"{name} {fields[key]}" for name, key in _DETAILS.items() if key in fields]
    return ", ".join([fields["model name"], *details])


def _instruction_sets() -> list[str]:
    flags = _cpuinfo().get("flags", "").split()
    return [name for flag, name in _INSTRUCTION_SETS.items() if flag in flags]


def _cpuinfo() -> dict[str, str]:
    """Return what Linux reports about the first CPU, or nothing on other systems."""
    try:
        lines = [line.partition(":") for line in _CPUINFO.read_text().splitlines()]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in reversed(lines)}


def of_run() -> dict[str, Any]:
    """Return the provenance that all rows of one run share."""
    return {"code": dict(code()), "machine": dict(machine()), "versions": versions()}
