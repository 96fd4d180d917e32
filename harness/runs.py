"""Where runs are kept: results/local below the current folder, one file a suite and version of the code."""

from __future__ import annotations

from pathlib import Path

from harness.provenance import code_fingerprint
from impls.errors import BadInput

LOCAL = Path("results") / "local"


def default_path(suite: str) -> Path:
    """The same command over the same code resumes its own file; changed code begins a new one."""
    return LOCAL / f"{suite}-{code_fingerprint()}.jsonl"


def latest() -> Path:
    """The run that was written to last."""
    found = sorted(LOCAL.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise BadInput(f"no run below {LOCAL}: allowed: --run PATH, or 'vocabench run quick' first")
    return found[-1]


def resolve(path: str | None) -> Path:
    return Path(path) if path else latest()
