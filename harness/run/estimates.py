"""Estimates of how long cells take, from earlier rows of the same cells and from the cells measured so far."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vocabench.harness.run import processes, provenance, results_files
from vocabench.harness.run.cells import Cell

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
    return {key: statistics.fmean(values) for key, values in seconds.items()}


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

    Cells count by their earlier seconds; a cell without any counts as the mean of the others. The time elapsed for the
    part that is done tells the time for the rest. It leaves out the first visit of each framework, which also imports
    it, compiles kernels and measures the ceilings of the machine.

    Args:
        cells: The cells to measure.
        seconds: Earlier seconds of a visit, by the cell's key.
    """

    def __init__(self, cells: Sequence[Cell], seconds: Mapping[str, float]) -> None:
        known = [seconds[cell.key] for cell in cells if cell.key in seconds]
        mean = statistics.fmean(known) if known else 1.0
        self._weights = {cell.key: max(seconds.get(cell.key, mean), 1e-3) for cell in cells}
        self._left = sum(self._weights[cell.key] * processes.visits(cell) for cell in cells)
        self._in_seconds = len(known) == len(cells)
        self._started: set[str] = set()  # frameworks
        self._done = self._seconds_of_done = self._elapsed = 0.0

    def visited(self, cell: Cell, elapsed: float) -> None:
        """Note that a cell was visited, given the seconds since the first cell began."""
        weight = self._weights[cell.key]
        self._left -= weight
        if cell.framework in self._started:
            self._done += weight
            self._seconds_of_done += elapsed - self._elapsed
        self._started.add(cell.framework)
        self._elapsed = elapsed

    def unneeded(self, cell: Cell, visits: int) -> None:
        """Note that a cell needs so many visits no more."""
        self._left -= self._weights[cell.key] * visits

    def seconds(self) -> float | None:
        """Return the seconds left; None where neither earlier rows nor the visits so far tell them."""
        if self._done:
            return max(0.0, self._left) * self._seconds_of_done / self._done
        return max(0.0, self._left) if self._in_seconds else None


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
