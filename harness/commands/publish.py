"""`vocabench publish`: a run's rows that are worth keeping, copied to where they are committed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vocabench.harness import registry
from vocabench.harness.atomic_write import written_whole
from vocabench.harness.run import portable, results_files
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.store import Row
from vocabench.impls.errors import BadInput

_KEPT = ("ok", "disagree")
_TEXT = ("summaries", "examples", "transcripts", "ids", "clusters")  # details that quote the data
_OURS = ("pydoc", "spoken")  # built from what may be passed on
_CODE = re.compile(r"-[0-9a-f]{12}$")  # of the run's default name


def publish(run: str, name: str | None, *, allow_dirty: bool, replace: bool) -> int:
    """Write results/NAME.jsonl whole or not at all; says what was left out, a line each."""
    path = Path(run)
    target = _target(name if name is not None else _CODE.sub("", path.stem))
    rows = results_files.rows(path)
    kept = [row for row in rows if row["status"] in _KEPT]
    for row in rows:
        if row["status"] not in _KEPT:
            print(f"left out: {Cell.from_json(row['cell']).label}: {row['status']}: {row.get('message', '')}")
    if not kept:
        raise BadInput(f"results file {path}: no row that was measured: allowed: at least one")
    if not allow_dirty:
        _check_clean(kept, path)
    if target.exists() and not replace:
        raise BadInput(f"{target} is there already: allowed: another name by --as, or --replace")
    quoted = [row if _may_be_passed_on(row) else _without_quotes(row) for row in kept]
    stripped = sum(new != old for new, old in zip(quoted, kept, strict=True))
    published = [_without_place(row) for row in quoted]
    if stripped:
        print(f"left out of {stripped} rows: {', '.join(_TEXT)}, which quote data that is not ours to pass on")
    _write(target, published)
    print(f"{len(published)} rows: {target}")
    return 0


def _target(name: str) -> Path:
    if not results_files.NAME.fullmatch(name):
        raise BadInput(f"name {name!r}: allowed: letters, digits, '.', '_' and '-', as of a file without folders")
    return results_files.PUBLISHED / f"{name.removesuffix('.jsonl')}.jsonl"


def _check_clean(rows: Sequence[Row], path: Path) -> None:
    dirty = [row for row in rows if row["provenance"].get("code", {}).get("dirty")]
    if dirty:
        label = Cell.from_json(dirty[0]["cell"]).label
        raise BadInput(
            f"results file {path}: {len(dirty)} of {len(rows)} rows come from code that no commit holds, such as "
            f"{label}: allowed: rows of a clean checkout, or --allow-dirty"
        )


def _may_be_passed_on(row: Row) -> bool:
    dataset = row["cell"].get("dataset", "")
    return not dataset or (dataset in registry.datasets() and dataset.startswith(_OURS))


def _without_quotes(row: Row) -> Row:
    return {**row, "measurements": _without_text(row["measurements"])}


def _without_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_text(item) for name, item in value.items() if name not in _TEXT}
    if isinstance(value, list):
        return [_without_text(item) for item in value]
    return value


def _without_place(row: Row) -> Row:
    cell = portable.by_name(row["cell"])
    return row if cell == row["cell"] else {**row, "cell": cell, "key": Cell.from_json(cell).key}


def _write(target: Path, rows: Sequence[Row]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(target) as file:
        file.writelines((json.dumps(row, allow_nan=False) + "\n").encode() for row in rows)
