"""Where a row comes from: code, versions and machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

_ROOT = Path(__file__).resolve().parent.parent
_LIBRARIES = ("numpy", "scipy", "pandas")


@cache
def code_fingerprint() -> str:
    """Twelve hexadecimal digits over every source and suite file of harness and impls: changes when the code does."""
    digest = hashlib.sha256()
    files = [p for folder in ("harness", "impls") for p in (_ROOT / folder).rglob("*") if p.suffix in (".py", ".toml")]
    for path in sorted(files):
        digest.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


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
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def of_run() -> dict[str, Any]:
    """What all rows of one run share."""
    return {"code": dict(code()), "machine": dict(machine()), "versions": versions()}
