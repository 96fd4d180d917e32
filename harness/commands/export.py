"""`vocabench export`: stored rows as results of asv, which keeps and shows their history."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from vocabench.harness.compare.asv_results import Origin, origin, provenance, write
from vocabench.harness.compare.matching import measured
from vocabench.harness.run import results_files
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.store import Row
from vocabench.impls.errors import BadInput

_COMMIT = re.compile(r"[0-9a-f]{40}")


def export(paths: Sequence[str], *, machine: str | None, out: str) -> int:
    """Write the measured rows below `out`; says of any other why it was left out, a line each.

    Args:
        machine: What asv calls the machine they were made on; None for a name made of its processor and GPU.
    """
    if machine is not None and not results_files.NAME.fullmatch(machine):
        raise BadInput(f"machine {machine!r}: allowed: letters, digits, '.', '_' and '-', as of a folder")
    found: list[tuple[Origin, Row]] = []
    for path in paths:
        for row in results_files.rows(Path(path)):
            reason = _refused(row, machine)
            if reason:
                print(f"left out: {Cell.from_json(row['cell']).label}: {reason}")
            else:
                date = _date(provenance(row, "code")["commit"])
                found.append((origin(row, date, machine), row))
    if not found:
        raise BadInput(f"{', '.join(paths)}: no row to export: allowed: measured rows of commits that are here")
    written = write(Path(out), found)
    print(f"{len(found)} rows: {len(written)} results files below {out}")
    return 0


def _refused(row: Row, machine: str | None) -> str:
    """Why asv could not place the row, or nothing."""
    code = provenance(row, "code")
    commit = code.get("commit")
    if not measured(row):
        return f"{row['status']}: {row.get('message', '')}"
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        return f"commit {commit!r}: allowed: the 40 digits of one, as of rows made in a checkout"
    if code.get("dirty") is not False:
        return f"commit {commit[:8]} with changes that no commit holds: allowed: rows of a clean checkout"
    if not _date(commit):
        return f"commit {commit[:8]} is not in the repository here: allowed: one that is; git fetch brings it"
    if machine is None and not provenance(row, "machine").get("cpu"):
        return "no processor in its provenance: allowed: one, or --machine NAME"
    return ""


@cache
def _date(commit: str) -> int:
    """When the commit was made, as asv tells it: in milliseconds; 0 where it is not here."""
    command = ["git", "log", "-1", "--format=%at", commit, "--"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return 1000 * int(done.stdout)
