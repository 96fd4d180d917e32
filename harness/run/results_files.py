"""Where runs are kept: results/local below the current folder, one file a suite and version of the code; and in results
what is published of them."""

from __future__ import annotations

import re
from pathlib import Path

from vocabench.harness.run import store
from vocabench.harness.run.provenance import code_fingerprint
from vocabench.harness.run.row import check
from vocabench.impls.errors import BadInput

PUBLISHED = Path("results")
LOCAL = PUBLISHED / "local"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of what becomes a file or folder


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
    return Path(path) if path is not None else latest()


def rows(path: Path) -> list[store.Row]:
    """The last row of each cell of a results file, each held against the form that `vocabench run` gives it.

    Raises:
        BadInput: As `store.read`, or a row's cell, measurements or provenance have another form.
    """
    found = store.latest(store.read(path))
    for row in found:
        try:
            check(row)
        except BadInput as error:
            raise BadInput(f"results file {path}, row {row['key']}: {error}") from error
    return found
