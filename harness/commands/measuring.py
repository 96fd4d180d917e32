"""Measurement of cells with progress and results on the screen, which `run` and `check` share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from vocabench.harness.commands.reporter import Reporter
from vocabench.harness.report.headline import headline
from vocabench.harness.report.rows import flatten
from vocabench.harness.run import estimates, pool, processes
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Row
from vocabench.harness.run.store import Store, latest

_LINE_INTERVAL = 30  # seconds between lines of progress where there is no terminal for a bar


def measure(
    cells: Sequence[Cell], store: Store, deadline: float, reporter: Reporter, run_cells: pool.RunCells
) -> list[Row]:
    """Measure the cells that the store lacks, and return their rows.

    Args:
        deadline: Time limit of a cell, in seconds.
        run_cells: Executor: `run` of `pool` or `ray_pool`, or `pool.run_side_by_side`.
    """
    if store.cut:
        reporter.note(f"{store.path} ended in an incomplete row, which was moved to {store.cut}")
    missing = [cell for cell in cells if cell.key not in store]
    if len(missing) < len(cells):
        reporter.note(f"{len(cells) - len(missing)} of {len(cells)} cells are in {store.path} already")
    seconds = estimates.earlier_seconds(missing, estimates.known_files(store.path))
    screen = _Screen(missing, reporter, estimates.TimeLeft(missing, seconds))
    reporter.event(
        "start",
        file=str(store.path),
        cells=len(cells),
        to_measure=len(missing),
        estimated_seconds=estimates.total(missing, seconds),
    )
    rows = []
    with screen.bar:
        for row in run_cells(missing, store, deadline=deadline, progress=screen.progress):
            rows.append(row)
            screen.finished(row)
    return latest(rows)


def duration(seconds: float) -> str:
    """Return an estimated duration, rounded to the precision of an estimate."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class _Screen:
    """A bar on a terminal, and a line for each cell that ends.

    Args:
        cells: The cells to measure.
    """

    def __init__(self, cells: Sequence[Cell], reporter: Reporter, time_left: estimates.TimeLeft) -> None:
        description = TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
        )
        columns = (description, BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
        console = reporter.console
        self._has_bar = console.is_terminal and not reporter.quiet
        self.bar = Progress(*columns, console=console, disable=not self._has_bar, expand=True)
        self._task = self.bar.add_task("starting", total=sum(map(processes.visits, cells)))
        self._reporter, self._time_left = reporter, time_left
        self._began = self._last_line = time.monotonic()
        self._done, self._number = 0, len(cells)
        self._visits: Counter[str] = Counter()  # by key of the cell

    def progress(self, cell: Cell, text: str) -> None:
        """Show what is being measured. Without a terminal, only now and then."""
        line = f"{cell.label} {text}".strip()
        self.bar.update(self._task, description=line)
        if not self._has_bar and time.monotonic() - self._last_line > _LINE_INTERVAL:
            self._note(line)

    def finished(self, row: Row) -> None:
        """Show the result of a cell that needs no further process."""
        self.bar.advance(self._task)
        self._time_left.visited(row.cell, time.monotonic() - self._began)
        self._visits[row.key] += 1
        if not (processes.is_complete(row) or row.message):
            return
        unneeded = processes.visits(row.cell) - self._visits[row.key]
        if unneeded > 0:
            self.bar.advance(self._task, unneeded)
            self._time_left.unneeded(row.cell, unneeded)
        self._done += 1
        left = self._time_left.seconds()
        ends = "" if left is None or self._done == self._number else f", about {duration(left)} left"
        line = f"{row.status}: {row.cell.label}: {row.message}" if row.message else headline(row)
        line += f" ({self._done} of {self._number}{ends})"
        if row.status == "skipped" or (row.status == "ok" and not row.message):
            self._note(line)
        else:
            self._reporter.always(line)
        self._reporter.event(
            "cell",
            key=row.key,
            label=row.cell.label,
            status=row.status,
            message=row.message,
            result=headline(row),
            done=self._done,
            of=self._number,
            seconds_left=left,
            figures=flatten([row]),
        )

    def _note(self, line: str) -> None:
        self._reporter.note(line)
        self._last_line = time.monotonic()
