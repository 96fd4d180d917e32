"""`vocabench run`: measure what a suite lists and the results file does not hold yet."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vocabench.harness import registry
from vocabench.harness.commands.table import show
from vocabench.harness.run import pool, ray_pool, results_files
from vocabench.harness.run.cells import Cell, Selection, Suite, check_by_hand
from vocabench.harness.run.provenance import code_fingerprint
from vocabench.harness.run.store import Row, Store
from vocabench.impls.errors import BadInput

_AGAIN = ("error", "timeout", "oom", "refused", "skipped")


def run(
    suite_name: str,
    selection: Selection,
    *,
    out: str | None,
    retry: bool,
    executor: str = "local",
    address: str | None = None,
    cores: int | None = None,
) -> int:
    """Returns 0 when every cell of the run was measured and agrees, 2 where one refused its input, else 1.

    Args:
        executor: "local", or "ray" with a cluster's address and the cores of a cell; see `ray_pool.run`.
    """
    console = Console(stderr=True)
    suite = Suite.load(suite_name)
    selection.check()
    check_by_hand(suite, selection)
    for framework in selection.frameworks or ():
        lacking = [method for method in selection.methods or () if method not in registry.methods(framework)]
        if lacking:
            console.print(f"left out, as {framework} does not have them: {', '.join(lacking)}")
    device = selection.device or "cpu"
    if executor == "ray":
        ray_pool.check(device, address, cores)
    elif address is not None or cores is not None:
        raise BadInput("--address and --cores are for a cluster: allowed: with --executor ray")
    with console.status("preparing"):
        cells = suite.cells(selection, progress=lambda text: None)
    run_cells = partial(ray_pool.run, address=address, cores=cores) if executor == "ray" else pool.run
    if executor == "local":
        pool.check_device({cell.framework for cell in cells if cell.method in registry.methods()}, device)
    path = Path(out) if out is not None else results_files.default_path(suite_name)
    keys = {cell.key for cell in cells}
    with Store(path, again=_AGAIN if retry else ()) as store:
        # Also, what could not be shown in the end is refused before anything is measured.
        others = [
            row
            for row in results_files.rows(path)
            if row["key"] in keys and row["key"] in store and _is_of_other_code(row)
        ]
        if others:
            console.print(
                f"{len(others)} cells of {path} were measured by other code: another --out measures them anew"
            )
        measure(cells, store, suite.deadline_seconds, console, run_cells)
    rows = [row for row in results_files.rows(path) if row["key"] in keys]
    show(rows, "markdown")
    console.print(f"rows: {path}")
    statuses = {row["status"] for row in rows}
    return 2 if "refused" in statuses else 0 if statuses <= {"ok", "skipped"} else 1


def _is_of_other_code(row: Row) -> bool:
    return row["provenance"].get("code", {}).get("fingerprint") != code_fingerprint()


def measure(
    cells: list[Cell], store: Store, deadline: float, console: Console, run_cells: pool.RunCells = pool.run
) -> list[Row]:
    """The rows of `cells` that were missing in the store, with a progress bar on the way."""
    if store.cut:
        console.print(f"{store.path} ended in half a row, which is in {store.cut} now", highlight=False, markup=False)
    waiting = [cell for cell in cells if cell.key not in store]
    if len(waiting) < len(cells):
        console.print(f"{len(cells) - len(waiting)} of {len(cells)} cells are in {store.path} already")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows = []
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=len(waiting))
        last_line = 0.0

        def progress(cell: Cell, text: str) -> None:
            nonlocal last_line
            bar.update(task, description=f"{cell.label} {text}".strip())
            # Without a terminal there is no bar to look at: say a line now and then.
            if not console.is_terminal and (not text or time.monotonic() - last_line > 30):
                console.print(f"{cell.label} {text}".strip(), highlight=False)
                last_line = time.monotonic()

        for row in run_cells(waiting, store, deadline=deadline, progress=progress):
            rows.append(row)
            bar.advance(task)
            if row["status"] != "ok":
                label = Cell.from_json(row["cell"]).label
                console.print(f"{row['status']}: {label}: {row['message']}", highlight=False, markup=False)
    return rows
