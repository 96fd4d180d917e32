"""How far the times of a run can be trusted: the spread between processes, and doubtful times."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from vocabench.harness.report.rows import Record, full_name, groups, is_doubtful, quantity_of

MARK = "*"  # after a ratio that is doubtful


def tables(records: Sequence[Record]) -> list[tuple[str, pd.DataFrame]]:
    """Return the tables on the times of these records, as `table.tables` does."""
    timed = [record for record in records if record["processes"]]
    return [
        ("Spread between processes, as a relative standard deviation", _spreads(timed)),
        (f"Doubtful times, marked {MARK}", _doubts([record for record in timed if is_doubtful(record)])),
    ]


def _spreads(records: Sequence[Record]) -> pd.DataFrame:
    lines = []
    for (name,), part in groups((r for r in records if r["spread_class"]), "spread_class").items():
        processes = _range([record["processes"] for record in part], "{}")
        ratios = _range([r["spread_of_ratio"] for r in part], "{:.1%}")
        lines.append([name, str(len(part)), processes, ratios, _range([r["spread_of_time"] for r in part], "{:.1%}")])
    return pd.DataFrame(lines, columns=["times", "number", "processes", "of the ratio", "of the time"])


def _doubts(records: Sequence[Record]) -> pd.DataFrame:
    lines = []
    columns = ("task", "framework", "method", "options", "apart", "vocab", "precision")
    for part in groups(records, *columns).values():
        first = part[0]
        off = [f"{quantity_of(r)} {r['baseline_factor']:.2f}" for r in part if r["baseline_factor"] is not None]
        busy = [r["busy_cores"] for r in part if r["busy_cores"] is not None]
        cores = f"{max(busy):.1f}" if busy else ""
        name = full_name(first)
        lines.append([first["task"], name, first["framework"], f"{first['vocab']:,}", cores, ", ".join(off)])
    shown = ["task", "method", "framework", "vocab", "cores used by others", "full softmax relative to other cells"]
    return pd.DataFrame(lines, columns=shown)


def _range(values: Sequence[float | None], form: str) -> str:
    """Return the range of the values, which differ if the records are of several runs."""
    known = [value for value in values if value is not None]
    low, high = form.format(min(known)), form.format(max(known))
    return low if low == high else f"{low} to {high}"
