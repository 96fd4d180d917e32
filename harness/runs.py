"""Where runs are kept: results/local below the current folder, one file a suite and version of the code; and in results
what is published of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harness import store
from harness.cells import Cell
from harness.provenance import code_fingerprint
from impls.errors import BadInput

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
    return Path(path) if path else latest()


def rows(path: Path) -> list[store.Row]:
    """The last row of each cell of a results file, each held against the form that `vocabench run` gives it.

    Raises:
        BadInput: As `store.read`, or a row's cell, measurements or provenance have another form.
    """
    found = store.latest(store.read(path))
    for row in found:
        try:
            Cell.from_json(row["cell"])
            _check(row)
        except BadInput as error:
            raise BadInput(f"results file {path}, row {row['key']}: {error}") from error
    return found


def _check(row: store.Row) -> None:
    if not isinstance(row["provenance"], dict) or not isinstance(row.get("agreement", {}), dict):
        raise BadInput("no row: provenance or agreement of another form")
    for measurement in row["measurements"]:
        if not isinstance(measurement, dict) or not isinstance(measurement.get("quantity"), str):
            raise BadInput("no measurement: allowed: an object with a quantity")
        ratio = measurement.get("ratio") or {}
        numbers: list[Any] = [measurement.get("value"), *_list(measurement.get("samples"))]
        if not isinstance(ratio, dict) or not isinstance(measurement.get("detail", {}), dict):
            raise BadInput(f"{measurement['quantity']}: no measurement: ratio or detail of another form")
        numbers += [ratio.get("value"), ratio.get("low"), ratio.get("high"), *_list(ratio.get("baseline_samples"))]
        for number in numbers:
            if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
                raise BadInput(f"{measurement['quantity']}: {number!r} is no number")


def _list(samples: Any) -> list[Any]:
    return samples if isinstance(samples, list) else [] if samples is None else ["samples"]
