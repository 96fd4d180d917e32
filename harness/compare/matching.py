"""Which measurement of one run is the same as which of another, and what the run says of its own noise."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import registry
from vocabench.harness.quantities import LOWER
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.store import Row
from vocabench.harness.tasks.shared.paired import BASELINE
from vocabench.impls.options import Destination

# How long to measure and what, not how: cells that differ in these alone are the same measurement.
_EFFORT = ("rounds", "budget", "quantities", "checked_tokens")

ERROR_RATES = ("cer", "per")


class Scores(NamedTuple):
    """What each sample adds to a figure, which is the sum of the values over that of the sizes.

    Attributes:
        values_S: Of an error rate the errors, of a mean of scores the score.
        sizes_S: Of an error rate the length of the reference, of a mean 1, or 0 where the score is not finite.
    """

    values_S: NDArray[np.float64]
    sizes_S: NDArray[np.float64]

    def pair_with(self, other: Scores) -> bool:
        """Whether both are of the same samples, all of which count."""
        return bool(len(self.sizes_S) and self.sizes_S.all()) and np.array_equal(self.sizes_S, other.sizes_S)


def sample_scores(measurement: Mapping[str, Any]) -> Scores:
    """Of a measurement as a row keeps it; empty where it keeps none."""
    if measurement["quantity"] in ERROR_RATES:
        counts = (measurement.get("detail") or {}).get("counts", ())
        counts_S4 = np.array(counts, np.float64).reshape(-1, 4)
        return Scores(counts_S4[:, :3].sum(axis=1), counts_S4[:, 3])
    values_S = np.array(measurement.get("samples") or (), np.float64)
    return Scores(values_S, np.isfinite(values_S).astype(np.float64))


@dataclass(frozen=True)
class Entry:
    """One quantity of one cell; of several runs of the same code the mean of their figures and all of their rounds.

    Attributes:
        samples: Of a time its rounds.
        scores: Of each sample; of several runs the mean, as the same samples again are no more of them.
        ratio: As a measurement's.
        definition: Which a time or a peak was taken by (`DEFINITION` of `timing` and `memory`).
        runs: What was pooled; empty for a single run.
    """

    cell: Cell
    row: Row
    quantity: str
    value: float | None
    unit: str
    better: str
    samples: list[float]
    scores: Scores
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
        return _provenance(self.row, room, name)


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
        found: dict[tuple[str, str], list[Entry]] = {}
        for row in rows:
            identity = identify(Cell.from_json(row["cell"]))
            run.rows[identity] = max(run.rows.get(identity, row), row, key=_trouble)
            for entry in entries(row):
                found.setdefault((identity, entry.quantity), []).append(entry)
        run.entries = {key: _pooled(each) for key, each in found.items()}
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


def agrees(row: Row) -> bool:
    return "disagree" not in (row["status"], row.get("agreement", {}).get("verdict"))


def _trouble(row: Row) -> tuple[bool, bool]:
    """What of several runs' rows of a cell stands for all: what failed once has failed, and likewise what disagreed."""
    return not measured(row), not agrees(row)


def identify(cell: Cell, **changed: Any) -> str:
    """What has to be equal for two cells to be the same measurement: all but the suite, the effort, and where output
    goes or a text lies that its sha256 tells. A setting that one side's code did not know yet has its default."""
    fields = cell.to_json() | changed
    settings = {**default_settings(cell.task), **fields["settings"]}
    settings = {name: value for name, value in settings.items() if distinguishes(cell.task, name)}
    dataset = "" if fields["dataset_sha256"] else Path(fields["dataset"]).name
    return json.dumps({**fields, "suite": "", "dataset": dataset, "settings": settings}, sort_keys=True, default=str)


def default_settings(task: str) -> dict[str, Any]:
    return {name: setting.default for name, setting in registry.settings(task).items()}


def distinguishes(task: str, setting: str) -> bool:
    """Whether cells of a task that differ in a setting are different measurements."""
    return setting not in _EFFORT and not isinstance(registry.settings(task).get(setting), Destination)


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
            scores=sample_scores(each),
            ratio=each.get("ratio") or {},
            definition=(each.get("detail") or {}).get("timing" if each.get("unit") == "s" else "counting", 1),
        )


def mixed(rows: Iterable[Row]) -> str:
    """What keeps rows of the same cell from being pooled: other code, or another definition of a figure; else
    nothing."""
    first: dict[tuple[str, str], Any] = {}
    for row in rows:
        cell = Cell.from_json(row["cell"])
        identity = identify(cell)
        for what, version in _versions(row):
            if (known := first.setdefault((identity, what), version)) != version:
                return f"{cell.label}: {what} {known} and {version}"
    return ""


def _versions(row: Row) -> Iterable[tuple[str, Any]]:
    if code := _provenance(row, "code", "fingerprint"):
        yield "code", code
    for entry in entries(row):
        yield f"{entry.quantity} by definition", entry.definition


def _pooled(runs: Sequence[Entry]) -> Entry:
    """The mean of the runs' figures, all of their rounds, and the widest of their noise."""
    first, *others = runs
    if not others:
        return first
    ratio: dict[str, Any] = {
        name: [sample for each in runs for sample in each.ratio.get(name) or []]
        for name in ("samples", "baseline_samples")
    }
    for name, widest in (("low", min), ("high", max)):
        ends = [each.ratio[name] for each in runs if each.ratio.get(name)]
        ratio |= {name: widest(ends)} if ends else {}
    values = [each.value for each in runs if each.value is not None]
    return dataclasses.replace(
        first,
        value=statistics.fmean(values) if len(values) == len(runs) else None,
        samples=[sample for each in runs for sample in each.samples],
        scores=_mean_scores([each.scores for each in runs]),
        ratio=ratio,
        runs=tuple(runs),
    )


def _mean_scores(runs: Sequence[Scores]) -> Scores:
    """Sample by sample; none where the runs do not score the same samples."""
    first = runs[0]
    if not all(first.pair_with(each) for each in runs):
        return Scores(np.zeros(0), np.zeros(0))
    return Scores(np.mean([each.values_S for each in runs], axis=0), first.sizes_S)


def _provenance(row: Row, room: str, name: str) -> Any:
    found = row["provenance"].get(room)
    return found.get(name) if isinstance(found, dict) else None


def _conditions(entry: Entry) -> tuple[str, str]:
    return identify(entry.cell, method="", options={}), entry.quantity


def _loosely(cell: Cell) -> str:
    vocab = 0 if cell.dataset else cell.vocab  # it follows from the text
    return identify(cell, dataset_sha256="", device="", precision="", vocab=vocab)
