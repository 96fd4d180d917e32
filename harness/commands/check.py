"""`vocabench check`: numerical agreement of every method, framework and precision with the oracle."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from vocabench.harness.commands.run import measure
from vocabench.harness.commands.table import show
from vocabench.harness.run import pool, results_files
from vocabench.harness.run.cells import Cell, Selection, Suite
from vocabench.harness.run.row import STATUSES
from vocabench.harness.run.store import Store


def check(selection: Selection, *, out: str | None) -> int:
    """Always measures anew. Returns 0 where all that can run here agree, else 1 after naming each cell and quantity
    that does not."""
    console = Console(stderr=True)
    suite = Suite.load("check")
    cells = suite.cells(selection)
    pool.check_device({cell.framework for cell in cells}, selection.device or "cpu")
    path = Path(out) if out is not None else results_files.LOCAL / f"check-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    start = time.perf_counter()
    with Store(path, again=STATUSES) as store:
        rows = measure(cells, store, suite.deadline_seconds, console, pool.run_side_by_side)
    show(rows, "markdown")
    run = [row for row in rows if row["status"] != "skipped"]
    failed = [row for row in run if row["status"] != "ok"]
    for row in failed:
        lines = row["agreement"].get("disagreements") or [row["message"]]
        for line in lines:
            print(f"{Cell.from_json(row['cell']).label}: {row['status']}: {line}")
    skipped = f", {len(rows) - len(run)} skipped" if len(run) < len(rows) else ""
    seconds = time.perf_counter() - start
    print(f"{len(run) - len(failed)} of {len(run)} cells agree{skipped}, {seconds:.0f} s; rows: {path}")
    return 1 if failed else 0
