"""Paths of results files: runs in results/local below the current folder, published rows in results."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path

from vocabench.harness.run import store
from vocabench.harness.run.provenance import code_fingerprint
from vocabench.harness.run.rows import Row
from vocabench.impls.errors import BadInput

PUBLISHED = Path("results")
LOCAL = PUBLISHED / "local"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # allowed name of a file or a folder


def default_path(suite: str) -> Path:
    """Return a path by suite and code: the same command resumes its file, and changed code starts a new one."""
    return LOCAL / f"{suite}-{code_fingerprint()}.jsonl"


def latest() -> Path:
    """Return the results file that was modified last."""
    paths = sorted(LOCAL.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise BadInput(f"no run below {LOCAL}: allowed: --run PATH, or 'vocabench run quick' first")
    return paths[-1]


def resolve(path: str | None) -> Path:
    return Path(path) if path is not None else latest()


def rows(path: Path, reduce: Callable[[Row], Row] | None = None) -> list[Row]:
    """Return the last row of each cell of a results file, or raise `BadInput` as `store.read` does."""
    return store.latest(store.read(path, reduce))


def rows_of_command(path: Path, reduce: Callable[[Row], Row] | None = None) -> list[Row]:
    """Return the same for a command that ends soon: the garbage collector searches these rows no more."""
    kept = rows(path, reduce)
    gc.freeze()
    return kept
