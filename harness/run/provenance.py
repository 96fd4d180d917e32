"""Where a row comes from: code, versions and machine."""

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

_ROOT = Path(__file__).resolve().parents[2]
_LIBRARIES = ("numpy", "scipy", "pandas")
_SOURCES = (".py", ".toml", ".cpp", ".h")
_CPUINFO, _WHICH = Path("/proc/cpuinfo"), {"family": "cpu family", "model": "model"}


@cache
def code_fingerprint() -> str:
    """`fingerprint` of this code when it was first asked for: what a run goes by."""
    return fingerprint()


def fingerprint(root: Path = _ROOT) -> str:
    """Twelve hexadecimal digits over every source and suite file of harness and impls: changes when the code does."""
    digest = hashlib.sha256()
    for path in sorted(_sources(root)):
        with suppress(FileNotFoundError):  # an editor's lock, which leads nowhere, or what it has just renamed
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _sources(root: Path) -> Iterator[Path]:
    for room in ("harness", "impls"):
        for folder, _, names in os.walk(root / room):
            yield from (Path(folder, name) for name in names if name.endswith(_SOURCES))


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


@cache
def code() -> Mapping[str, Any]:
    """Commit and whether the tree differs from it (empty and None outside a checkout), and the fingerprint."""
    top = _git("rev-parse", "--show-toplevel")
    inside = bool(top) and Path(top).resolve() == _ROOT
    return {
        "commit": _git("rev-parse", "HEAD") if inside else "",
        "dirty": bool(_git("status", "--porcelain", "--", "harness", "impls", "benchmarks")) if inside else None,
        "fingerprint": code_fingerprint(),
    }


@cache
def machine() -> Mapping[str, Any]:
    return {
        "cpu": _cpu_name(),
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
    """With family and model, as virtual machines name processors of several generations alike."""
    try:
        lines = [line.partition(":") for line in _CPUINFO.read_text().splitlines()]
    except OSError:
        lines = []
    found = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    if "model name" not in found:
        return platform.processor() or platform.machine()
    return ", ".join([found["model name"], *(f"{name} {found[key]}" for name, key in _WHICH.items() if key in found)])


def of_run() -> dict[str, Any]:
    """What all rows of one run share."""
    return {"code": dict(code()), "machine": dict(machine()), "versions": versions()}
