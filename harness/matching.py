"""Which measurement of one run is the same as which of another, and what the run says of its own noise."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from harness import registry
from harness.cells import Cell
from harness.quantities import LOWER
from harness.store import Row
from harness.tasks._paired import BASELINE

# How long to measure and what, not how: cells that differ in these alone are the same measurement.
EFFORT = ("rounds", "budget", "quantities", "checked_tokens")


@dataclass(frozen=True)
class Entry:
    """One quantity of one cell; of several runs of the same code, all of their rounds.

    Attributes:
        ratio: As a measurement's.
        definition: Which a time or a peak was taken by (`harness.timing.DEFINITION`, `harness.memory.DEFINITION`).
        runs: What was pooled; empty for a single run.
    """

    cell: Cell
    row: Row
    quantity: str
    value: float | None
    unit: str
    better: str
    samples: list[float]
    ratio: Mapping[str, Any]
    definition: int = 1
    runs: tuple[Entry, ...] = ()

    @property
    def is_time(self) -> bool:
        return self.unit == "s" or self.quantity == "rtf"

    @property
    def is_baseline(self) -> bool:
        return self.cell.method == BASELINE

    @cached_property
    def logs(self) -> list[float]:
        """Log of each sample."""
        return np.log(positive(self.samples)).tolist()

    @cached_property
    def rounds(self) -> list[float]:
        """Log of full softmax's time over this one's, round by round; none where it was timed alone."""
        baseline = positive(self.ratio.get("baseline_samples"))
        if len(baseline) == len(self.logs):
            return (np.log(baseline) - np.asarray(self.logs)).tolist()
        return np.log(positive(self.ratio.get("samples"))).tolist()

    @property
    def each_run(self) -> tuple[Entry, ...]:
        return self.runs or (self,)

    def provenance(self, room: str, name: str) -> Any:
        found = self.row["provenance"].get(room)
        return found.get(name) if isinstance(found, dict) else None


@dataclass
class Run:
    """Rows and measurements by the identity of their cell."""

    rows: dict[str, Row] = field(default_factory=dict)
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    _groups: dict[tuple[str, str], list[Entry]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Run:
        """
        Args:
            rows: Of one run, or of several of the same code, the last of each cell.
        """
        run = cls()
        for row in rows:
            identity = identify(Cell.from_json(row["cell"]))
            if not measured(row) or measured(run.rows.get(identity, row)):  # what failed once has failed
                run.rows[identity] = row
            for entry in entries(row):
                key = identity, entry.quantity
                run.entries[key] = _pooled(run.entries[key], entry) if key in run.entries else entry
        for entry in run.entries.values():
            run._groups.setdefault(_conditions(entry), []).append(entry)
        return run

    def group(self, entry: Entry) -> list[Entry]:
        """The same quantity of every method under the same conditions."""
        return self._groups.get(_conditions(entry), [])

    def noise(self, entry: Entry) -> float:
        """The farthest that full softmax, timed against a second copy of itself under the same conditions, may be from
        1, as a log; 0 where the run has no such cell."""
        bounds = [
            abs(math.log(each.ratio[end]))
            for each in self.group(entry)
            if each.is_baseline
            for end in ("low", "high")
            if (each.ratio.get(end) or 0.0) > 0
        ]
        return max(bounds, default=0.0)

    def spread(self, entry: Entry) -> float:
        """How far apart full softmax's own times lie that the run took in different processes, as a log."""
        series = [positive(each.ratio.get("baseline_samples")) for each in self.group(entry)]
        series += [positive(each.samples) for each in self.group(entry) if each.is_baseline]
        centres = [math.log(statistics.median(each)) for each in series if each]
        return max(centres, default=0.0) - min(centres, default=0.0)

    def nearly(self, cell: Cell) -> str:
        """What keeps a cell of this run from being the same as `cell`, where that is no more than its text, device or
        precision; else nothing."""
        loose = _loosely(cell)
        for row in self.rows.values():
            other = Cell.from_json(row["cell"])
            if _loosely(other) == loose:
                names = ("dataset_sha256", "device", "precision")
                differ = [name for name in names if getattr(cell, name) != getattr(other, name)]
                return "; ".join(
                    f"{name} {getattr(cell, name)[:12]}, then {getattr(other, name)[:12]}" for name in differ
                )
        return ""


def measured(row: Row | None) -> bool:
    return row is not None and row["status"] in ("ok", "disagree")


def identify(cell: Cell, **changed: Any) -> str:
    """What has to be equal for two cells to be the same measurement: all but the suite and the effort. A setting that
    one side's code did not know yet has its default."""
    fields = cell.to_json() | changed
    known = registry.task(cell.task).SETTINGS if cell.task in registry.tasks() else {}
    defaults = {name: setting.default for name, setting in known.items()}
    settings = {name: value for name, value in (defaults | fields["settings"]).items() if name not in EFFORT}
    return json.dumps({**fields, "suite": "", "settings": settings}, sort_keys=True, default=str)


def positive(samples: Any) -> list[float]:
    return [each for each in samples or [] if each is not None and each > 0]


def entries(row: Row) -> Iterable[Entry]:
    for each in row["measurements"] if measured(row) else ():
        yield Entry(
            cell=Cell.from_json(row["cell"]),
            row=row,
            quantity=each["quantity"],
            value=each.get("value"),
            unit=each.get("unit", "1"),
            better=each.get("better", LOWER),
            samples=[sample for sample in each.get("samples") or [] if sample is not None],
            ratio=each.get("ratio") or {},
            definition=(each.get("detail") or {}).get("timing" if each.get("unit") == "s" else "counting", 1),
        )


def _pooled(first: Entry, second: Entry) -> Entry:
    """Both measurements' rounds, and the wider of their noise."""
    ratios = first.ratio, second.ratio
    ratio: dict[str, Any] = {
        name: [*(ratios[0].get(name) or []), *(ratios[1].get(name) or [])] for name in ("samples", "baseline_samples")
    }
    for name, wider in (("low", min), ("high", max)):
        ends = [each[name] for each in ratios if each.get(name)]
        ratio |= {name: wider(ends)} if ends else {}
    value = None if first.value is None or second.value is None else (first.value + second.value) / 2
    samples, runs = first.samples + second.samples, first.each_run + second.each_run
    return dataclasses.replace(second, value=value, samples=samples, ratio=ratio, runs=runs)


def _conditions(entry: Entry) -> tuple[str, str]:
    return identify(entry.cell, method="", options={}), entry.quantity


def _loosely(cell: Cell) -> str:
    vocab = 0 if cell.dataset else cell.vocab  # it follows from the text
    return identify(cell, dataset_sha256="", device="", precision="", vocab=vocab)
