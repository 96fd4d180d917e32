"""Estimates of how long cells take, from earlier rows of the same cells and from the cells measured so far."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from vocabench.harness.run import processes, provenance, results_files
from vocabench.harness.run.cells import Cell

_ALL = "all cells"
_LONGEST = 1e9  # seconds of a cell; a damaged line may hold anything


def earlier_seconds(cells: Iterable[Cell], files: Iterable[Path]) -> dict[str, float]:
    """Return how long one process of each cell took in earlier rows of this machine, by the key of the cell.

    Lines that are not such rows are passed over: an estimate needs none of them.
    """
    keys = {cell.key for cell in cells}
    machine = _identity(provenance.machine())
    seconds: dict[str, list[float]] = {}
    for file in files:
        for line in _lines(file):
            key = line.get("key")
            if isinstance(key, str) and key in keys and (found := _seconds(line, machine)) is not None:
                seconds.setdefault(key, []).append(found)
    return {key: fmean(values) for key, values in seconds.items()}


def known_files(out: Path) -> list[Path]:
    """Return the results files in which rows of the same cells are looked for: `out`, local runs and published rows."""
    folders = (results_files.LOCAL, results_files.PUBLISHED)
    return list(dict.fromkeys([out, *(path for folder in folders for path in sorted(folder.glob("*.jsonl")))]))


def total(cells: Sequence[Cell], seconds: Mapping[str, float]) -> float | None:
    """Return the seconds that all cells take; None if one of them is unknown."""
    if any(cell.key not in seconds for cell in cells):
        return None
    return sum(seconds[cell.key] * processes.visits(cell) for cell in cells)


class TimeLeft:
    """Estimate of the time that the rest of a run takes.

    A visit to a cell is expected to take as long as in earlier rows, times the pace of this run in comparison with
    them. Without such rows, it is expected to take as long as earlier visits to the same cell, or else to cells of the
    same size and precision, which are often skipped together, or else to any cell. The first visit of each framework
    does not count: it also imports it, compiles kernels and measures the ceilings of the machine.

    Args:
        cells: The cells to measure.
        seconds: Earlier seconds of a visit, by the cell's key.
    """

    def __init__(self, cells: Sequence[Cell], seconds: Mapping[str, float]) -> None:
        self._cells = {cell.key: cell for cell in cells}
        self._left = {cell.key: processes.visits(cell) for cell in cells}
        self._earlier = {key: max(seconds[key], 1e-3) for key in self._cells if key in seconds}
        self._started: set[str] = set()  # frameworks
        self._elapsed = 0.0
        self._number: Counter[object] = Counter()  # of visits, by group
        self._seconds: defaultdict[object, float] = defaultdict(float)  # of these visits
        self._now = self._before = 0.0  # seconds of visits to cells with earlier rows, and in these rows

    def visited(self, cell: Cell, elapsed: float) -> None:
        """Note that a cell was visited, given the seconds since the first cell began."""
        seconds, self._elapsed = elapsed - self._elapsed, elapsed
        self._left[cell.key] -= 1
        if cell.framework in self._started:
            for group in _groups(cell):
                self._number[group] += 1
                self._seconds[group] += seconds
            if cell.key in self._earlier:
                self._now += seconds
                self._before += self._earlier[cell.key]
        self._started.add(cell.framework)

    def unneeded(self, cell: Cell, visits: int) -> None:
        """Note that a cell needs so many visits no more."""
        self._left[cell.key] -= visits

    def seconds(self) -> float | None:
        """Return the seconds left; None where neither earlier rows nor the visits so far tell them."""
        seconds = 0.0
        for key, visits in self._left.items():
            if visits > 0:
                expected = self._expected(self._cells[key])
                if expected is None:
                    return None
                seconds += visits * expected
        return seconds

    def _expected(self, cell: Cell) -> float | None:
        if cell.key in self._earlier:
            pace = self._now / self._before if self._before else 1.0
            return self._earlier[cell.key] * pace
        means = (self._seconds[group] / self._number[group] for group in _groups(cell) if self._number[group])
        return next(means, None)


def _groups(cell: Cell) -> tuple[object, ...]:
    """Return the groups that a cell belongs to, the closest first: itself, cells of its size, and all cells."""
    return cell.key, (cell.task, cell.vocab, cell.dim, cell.tokens, cell.device, cell.precision), _ALL


def _lines(file: Path) -> Iterable[dict[str, Any]]:
    try:
        with file.open("rb") as lines:
            for line in lines:
                try:
                    fields = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(fields, dict):
                    yield fields
    except OSError:
        return


def _seconds(row: Mapping[str, Any], machine: tuple[object, ...]) -> float | None:
    origin = row.get("provenance")
    if row.get("status") != "ok" or not isinstance(origin, dict) or not isinstance(origin.get("machine"), dict):
        return None
    seconds = origin.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _LONGEST:
        return None
    return float(seconds) if _identity(origin["machine"]) == machine else None


def _identity(machine: Mapping[str, Any]) -> tuple[object, ...]:
    return machine.get("cpu"), machine.get("cores")
