"""One run of a suite: what can be known beforehand is checked first, then data is loaded, and cells are measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from vocabench.harness import registry
from vocabench.harness.commands.measuring import duration, measure
from vocabench.harness.commands.reporter import Reporter
from vocabench.harness.run import devices, estimates, pool, processes, ray_pool, results_files
from vocabench.harness.run.cells import Cell, labels
from vocabench.harness.run.executor import LOCAL, Executor
from vocabench.harness.run.provenance import code_fingerprint
from vocabench.harness.run.rows import Row
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.store import Store
from vocabench.harness.run.suites import ORACLE, Suite
from vocabench.impls.errors import BadInput, Unsupported

_RETRIED = ("error", "timeout", "oom", "refused", "skipped")


class SuiteRun:
    """A run of a suite. Making one checks whatever can be known without loading data.

    Args:
        suite: Name of a suite, or path of its file.
        out: Path of the results file; by default one for the suite and the code.
        retry: Measure cells that failed or were skipped again.

    Attributes:
        path: Results file.
        skipped: Rows, which are not stored, of the sweeps whose data this machine cannot provide.

    Raises:
        BadInput: A name, size, device or place is not allowed.
    """

    def __init__(
        self,
        suite: str,
        selection: Selection,
        *,
        out: str | None = None,
        retry: bool = False,
        executor: Executor = LOCAL,
        reporter: Reporter,
    ) -> None:
        self._suite = Suite.load(suite)
        self._plan = self._suite.plan(selection)
        self._selection, self._retry, self._executor, self._reporter = selection, retry, executor, reporter
        self.path = Path(out) if out is not None else results_files.default_path(self._suite.name)
        self.skipped: list[Row] = []
        self._note_left_out()
        self._check_executor()

    def measure(self) -> list[Row]:
        """Measure the cells that the results file lacks, and return the rows of all cells."""
        with Store(self.path, again=_RETRIED if self._retry else ()) as store:
            cells = self._cells()
            keys = {cell.key for cell in cells}
            # Reading the rows here also refuses a file that could not be shown, before anything is measured.
            kept = [row for row in results_files.rows(self.path) if row.key in keys and row.key in store]
            if old := _count_from_other_code(kept):
                self._reporter.note(
                    f"{old} cells of {self.path} were measured by other code: another --out measures them anew"
                )
            measure(cells, store, self._suite.deadline_seconds, self._reporter, self._run_cells)
            rows = [row for row in results_files.rows(self.path) if row.key in keys]
            return _with_pooled_intervals(rows, store)

    def describe(self) -> None:
        """Print the cells, which of them are measured already, and an estimate of the time, and measure nothing."""
        cells = self._cells()
        rows = results_files.rows(self.path) if self.path.exists() else []
        again = _RETRIED if self._retry else ()
        measured = {row.key for row in rows if processes.is_complete(row) and row.status not in again}
        missing = [cell for cell in cells if cell.key not in measured]
        seconds = estimates.earlier_seconds(missing, estimates.known_files(self.path))
        for cell, label in zip(cells, labels(cells), strict=True):
            state, estimate = "measured", None
            if cell.key not in measured:
                estimate = estimates.total([cell], seconds)
                state = "time unknown" if estimate is None else f"about {duration(estimate)}"
            seed = f" seed {cell.seed}" if cell.seed else ""
            if not self._reporter.as_json:
                print(f"{label}{seed}: {state}")
            self._reporter.event(
                "planned",
                key=cell.key,
                label=label,
                cell=cell.to_json(),
                measured=cell.key in measured,
                estimated_seconds=estimate,
            )
        total = estimates.total(missing, seconds)
        known = [cell for cell in missing if cell.key in seconds]
        self._reporter.event(
            "end", file=str(self.path), cells=len(cells), to_measure=len(missing), estimated_seconds=total
        )
        if not self._reporter.as_json:
            print(
                f"{len(missing)} of {len(cells)} cells to measure, {_time(missing, known, seconds)}; rows: {self.path}"
            )

    def statuses(self, rows: Sequence[Row]) -> dict[str, int]:
        """Return the number of cells by their status, with those that are not stored."""
        return dict(Counter(row.status for row in [*rows, *self.skipped]))

    def _note_left_out(self) -> None:
        plan, selection = self._plan, self._selection
        if plan.sweeps and (lacking := plan.lacking_methods):
            self._reporter.note(f"left out, because no task of the suite has them: {', '.join(lacking)}")
        with_layer = [method for method in selection.methods or () if method in registry.methods()]
        for framework in selection.frameworks or ():
            lacking = [method for method in with_layer if method not in registry.methods(framework)]
            if lacking:
                self._reporter.note(f"left out, because {framework} does not have them: {', '.join(lacking)}")

    def _check_executor(self) -> None:
        executor, device = self._executor, self._selection.device or "cpu"
        if executor.kind == "ray":
            ray_pool.check(device, executor.address, executor.cores)
            return
        if executor.address is not None or executor.cores is not None:
            raise BadInput("--address and --cores are for a cluster: allowed: with --executor ray")
        installed = [name for name in self._plan.frameworks if registry.is_installed(name)]
        devices.check(installed, device, every=self._selection.frameworks is not None)

    @property
    def _run_cells(self) -> pool.RunCells:
        if self._executor.kind == "ray":
            return partial(ray_pool.run, address=self._executor.address, cores=self._executor.cores)
        return pool.run

    def _cells(self) -> list[Cell]:
        """Return the cells of the run. This loads data, and builds or downloads it if need be."""
        self.skipped = []
        if not self._reporter.quiet and self._reporter.console.is_terminal:
            with self._reporter.console.status("preparing"):
                return self._plan.cells(skip=self._skip)
        return self._plan.cells(skip=self._skip)

    def _skip(self, task: str, dataset: str, reason: Unsupported) -> None:
        cell = Cell(self._suite.name, task, ORACLE, "", vocab=0, dim=0, tokens=0, dataset=dataset)
        if any(row.key == cell.key for row in self.skipped):
            return  # another sweep over the same data
        self.skipped.append(pool.failed(cell, "skipped", str(reason)))
        self._reporter.note(f"skipped: {task} {dataset}: {reason}")
        self._reporter.event("skipped", task=task, dataset=dataset, message=str(reason))


def _time(missing: Sequence[Cell], known: Sequence[Cell], seconds: dict[str, float]) -> str:
    total = estimates.total(known, seconds)
    if not missing:
        return "nothing to do"
    if not known:
        return "time unknown: no earlier rows of these cells"
    if len(known) < len(missing):
        return f"about {duration(total or 0)} for {len(known)} of them, the others unknown"
    return f"about {duration(total or 0)} by earlier rows"


def _with_pooled_intervals(rows: Sequence[Row], store: Store) -> list[Row]:
    """Return the rows with their intervals over processes, and store those that this changes."""
    pooled = processes.pool(rows)
    for before, after in zip(rows, pooled, strict=True):
        if after != before:
            store.append(after)
    return pooled


def _count_from_other_code(rows: Sequence[Row]) -> int:
    return sum(row.provenance.code.get("fingerprint") != code_fingerprint() for row in rows)
