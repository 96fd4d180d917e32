"""`vocabench publish`: copy the rows of a run to the folder where they are committed."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vocabench.harness.atomic_write import atomic_writer
from vocabench.harness.commands.command import Command
from vocabench.impls.errors import BadInput

if TYPE_CHECKING:
    from vocabench.harness.run.rows import Row

_FINGERPRINT = re.compile(r"-[0-9a-f]{12}$")  # end of a run's default name


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="results file")
    parser.add_argument(
        "--as", dest="name", metavar="NAME", help="write results/NAME.jsonl (default: the name of the run)"
    )
    parser.add_argument(
        "--allow-dirty", action="store_true", help="allow rows of code with uncommitted changes or no commit"
    )
    parser.add_argument("--replace", action="store_true", help="replace rows that are published under that name")


def _run(arguments: argparse.Namespace) -> int:
    return publish(arguments.run, arguments.name, allow_dirty=arguments.allow_dirty, replace=arguments.replace)


COMMAND = Command("publish", "copy the rows of a run to results/, where they are committed", _add_arguments, _run)


def publish(run: str, name: str | None, *, allow_dirty: bool, replace: bool) -> int:
    """Write results/NAME.jsonl, and print a line for each row that is left out."""
    from vocabench.harness.commands.publishable import QUOTATIONS, without_paths, without_quotations
    from vocabench.harness.run import results_files

    path = Path(run)
    target = _target(name if name is not None else _FINGERPRINT.sub("", path.stem))
    rows = results_files.rows(path)
    kept = [row for row in rows if row.is_measured]
    for row in rows:
        if not row.is_measured:
            print(f"left out: {row.cell.label}: {row.status}: {row.message}")
    if not kept:
        raise BadInput(f"results file {path}: no row that was measured: allowed: at least one")
    if not allow_dirty:
        _check_clean(kept, path)
    if target.exists() and not replace:
        raise BadInput(f"{target} is there already: allowed: another name by --as, or --replace")
    unquoted = [without_quotations(row) for row in kept]
    stripped = sum(new != old for new, old in zip(unquoted, kept, strict=True))
    if stripped:
        print(f"left out of {stripped} rows: {', '.join(QUOTATIONS)}, which quote data that may not be passed on")
    _write(target, [without_paths(row) for row in unquoted])
    print(f"{len(unquoted)} rows: {target}")
    return 0


def _target(name: str) -> Path:
    from vocabench.harness.run import results_files

    if not results_files.NAME.fullmatch(name):
        raise BadInput(f"name {name!r}: allowed: letters, digits, '.', '_' and '-', as of a file without folders")
    return results_files.PUBLISHED / f"{name.removesuffix('.jsonl')}.jsonl"


def _check_clean(rows: Sequence[Row], path: Path) -> None:
    def is_clean(row: Row) -> bool:
        return bool(row.provenance.code.get("commit")) and row.provenance.code.get("dirty") is False

    dirty = [row for row in rows if not is_clean(row)]
    if dirty:
        raise BadInput(
            f"results file {path}: {len(dirty)} of {len(rows)} rows come from code that no commit holds, or whose "
            f"commit is unknown, such as {dirty[0].cell.label}: allowed: rows of a clean checkout, or --allow-dirty"
        )


def _write(target: Path, rows: Sequence[Row]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(target) as file:
        file.writelines((json.dumps(row.to_json(), allow_nan=False) + "\n").encode() for row in rows)
