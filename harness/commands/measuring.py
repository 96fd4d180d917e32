"""Measurement of cells with a progress bar, which `run` and `check` share."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vocabench.harness.run import pool, processes
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Row
from vocabench.harness.run.store import Store, latest

_LINE_INTERVAL = 30  # seconds between lines of progress where there is no terminal for a bar


def measure(
    cells: Sequence[Cell], store: Store, deadline: float, console: Console, run_cells: pool.RunCells
) -> list[Row]:
    """Measure the cells that the store lacks, and return their rows.

    Args:
        deadline: Time limit of a cell, in seconds.
        run_cells: Executor: `run` of `pool` or `ray_pool`, or `pool.run_side_by_side`.
    """
    if store.cut:
        message = f"{store.path} ended in an incomplete row, which was moved to {store.cut}"
        console.print(message, highlight=False, markup=False)
    missing = [cell for cell in cells if cell.key not in store]
    if len(missing) < len(cells):
        console.print(f"{len(cells) - len(missing)} of {len(cells)} cells are in {store.path} already")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows = []
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=sum(map(processes.visits, missing)))
        last_line = 0.0

        def show_progress(cell: Cell, text: str) -> None:
            nonlocal last_line
            line = f"{cell.label} {text}".strip()
            bar.update(task, description=line)
            if not console.is_terminal and (not text or time.monotonic() - last_line > _LINE_INTERVAL):
                console.print(line, highlight=False)
                last_line = time.monotonic()

        for row in run_cells(missing, store, deadline=deadline, progress=show_progress):
            rows.append(row)
            bar.advance(task)
            if row.message:
                console.print(f"{row.status}: {row.cell.label}: {row.message}", highlight=False, markup=False)
    return latest(rows)
