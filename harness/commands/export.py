"""`vocabench export`: stored rows as results of asv, which keeps and shows their history."""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vocabench.harness.commands.command import Command
from vocabench.impls.errors import BadInput

if TYPE_CHECKING:
    from vocabench.harness.compare.asv_results import Origin
    from vocabench.harness.run.rows import Row

_COMMIT = re.compile(r"[0-9a-f]{40}")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", help="results file")
    parser.add_argument(
        "--machine", metavar="NAME", help="name of the machine in asv (default: made of its processor and GPU)"
    )
    parser.add_argument("--out", default="results/asv/results", help="results_dir of asv (default: %(default)s)")


def _run(arguments: argparse.Namespace) -> int:
    return export(arguments.run, machine=arguments.machine, out=arguments.out)


COMMAND = Command(
    "export", "add stored rows, measured on any machine, to the history that asv keeps", _add_arguments, _run
)


def export(paths: Sequence[str], *, machine: str | None, out: str) -> int:
    """Write the measured rows below the folder `out`, and print a line for each row that is left out.

    Args:
        machine: Name of the machine in asv; None makes one of its processor and GPU.
    """
    from vocabench.harness.compare.asv_results import origin, write
    from vocabench.harness.run import results_files

    if machine is not None and not results_files.NAME.fullmatch(machine):
        raise BadInput(f"machine {machine!r}: allowed: letters, digits, '.', '_' and '-', as of a folder")
    exported: list[tuple[Origin, Row]] = []
    for path in paths:
        for row in results_files.rows(Path(path)):
            reason = _refusal(row, machine)
            if reason:
                print(f"left out: {row.cell.label}: {reason}")
            else:
                date = _date(row.provenance.code["commit"])
                exported.append((origin(row, date, machine), row))
    if not exported:
        raise BadInput(f"{', '.join(paths)}: no row to export: allowed: measured rows of commits that are here")
    files = write(Path(out), exported)
    print(f"{len(exported)} rows: {len(files)} results files below {out}")
    return 0


def _refusal(row: Row, machine: str | None) -> str:
    """Return the reason why asv could not place the row; "" if it can."""
    code = row.provenance.code
    commit = code.get("commit")
    if not row.is_measured:
        return f"{row.status}: {row.message}"
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        return f"commit {commit!r}: allowed: 40 hexadecimal digits, as in rows made in a checkout"
    if code.get("dirty") is not False:
        return f"commit {commit[:8]} with changes that no commit holds: allowed: rows of a clean checkout"
    if not _date(commit):
        return f"commit {commit[:8]} is not in this repository: allowed: one that is; git fetch brings it"
    if machine is None and not row.provenance.machine.get("cpu"):
        return "no processor in its provenance: allowed: one, or --machine NAME"
    return ""


@cache
def _date(commit: str) -> int:
    """Return the date of a commit in milliseconds, as asv stores it; 0 if the commit is not here."""
    command = ["git", "log", "-1", "--format=%at", commit, "--"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return 1000 * int(process.stdout)
