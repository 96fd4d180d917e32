"""Matching of measurements between runs, and each run's estimate of its noise."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from vocabench.harness import registry
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Ratio, Row
from vocabench.harness.tasks.shared.paired import BASELINE
from vocabench.impls.options import Destination

# Settings of how long to measure and which quantities: cells that differ only in these are the same measurement.
EFFORT = ("processes", "rounds", "budget", "quantities", "checked_tokens", "longest_step", "slow_precision")

_FIELDS = tuple(item.name for item in dataclasses.fields(Cell))
_SORTED_JSON = msgspec.json.Encoder(enc_hook=str, order="deterministic")

ERROR_RATES = ("cer", "per")


class Scores(NamedTuple):
    """Contribution of each sample to a figure, which is the sum of the values divided by the sum of the sizes.

    Attributes:
        values_S: Number of errors for an error rate, score for a mean of scores.
        sizes_S: Length of the reference for an error rate; for a mean of scores 1, or 0 if the score is not finite.
    """

    values_S: NDArray[np.float64]
    sizes_S: NDArray[np.float64]

    def pair_with(self, other: Scores) -> bool:
        """Whether both score the same samples, without any missing score."""
        return bool(len(self.sizes_S) and self.sizes_S.all()) and np.array_equal(self.sizes_S, other.sizes_S)


def sample_scores(measurement: Measurement) -> Scores:
    """Return the scores of a measurement's samples; empty if it has none."""
    if measurement.quantity in ERROR_RATES:
        counts_S4 = np.array(measurement.detail.get("counts", ()), np.float64).reshape(-1, 4)
        return Scores(counts_S4[:, :3].sum(axis=1), counts_S4[:, 3])
    values_S = np.array(measurement.samples, np.float64)
    return Scores(values_S, np.isfinite(values_S).astype(np.float64))


class Place:
    """What the cell of a row shares with other cells: computed once for all measurements of the row."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @cached_property
    def identity(self) -> str:
        return identify(self._cell)

    @cached_property
    def conditions(self) -> str:
        """The same for all methods that were measured under the same conditions."""
        return identify(self._cell, method="", options={})

    @cached_property
    def without_seed(self) -> str:
        return identify(self._cell, seed=0)


@dataclass(frozen=True)
class Entry:
    """One measurement of one cell, or several runs of the same code pooled: the mean of their figures, all rounds.

    Attributes:
        row: Row of the measurement; when pooled, of the first run.
        place: Identities of the row's cell.
        runs: Pooled entries; empty for a single run.
    """

    row: Row
    measurement: Measurement
    place: Place
    runs: tuple[Entry, ...] = ()

    @property
    def cell(self) -> Cell:
        return self.row.cell

    @property
    def quantity(self) -> str:
        return self.measurement.quantity

    @property
    def value(self) -> float | None:
        """The figure; None if it is not finite."""
        return self.measurement.finite_value

    @property
    def unit(self) -> str:
        return self.measurement.unit

    @property
    def better(self) -> str:
        return self.measurement.better

    @cached_property
    def samples(self) -> list[float]:
        """The samples that are finite."""
        return [sample for sample in self.measurement.samples if not math.isnan(sample)]

    @property
    def ratio(self) -> Ratio:
        return self.measurement.ratio or Ratio()

    @property
    def definition(self) -> int:
        return definition(self.measurement)

    @property
    def is_time(self) -> bool:
        return self.unit == "s" or self.quantity == "rtf"

    @property
    def is_baseline(self) -> bool:
        return self.cell.method == BASELINE

    @cached_property
    def logs(self) -> list[float]:
        """Logarithm of each sample."""
        return np.log(positive(self.samples)).tolist()

    @cached_property
    def rounds(self) -> list[float]:
        """Logarithm of full softmax's time divided by this one, for each round; empty if they were not paired."""
        baseline = positive(self.ratio.baseline_samples)
        if len(baseline) == len(self.logs):
            return (np.log(baseline) - np.asarray(self.logs)).tolist()
        return np.log(positive(self.ratio.samples)).tolist()

    @property
    def is_paired(self) -> bool:
        """Whether the time was measured in alternation with full softmax."""
        return bool(self.ratio.value or positive(self.ratio.samples))

    @property
    def single_runs(self) -> tuple[Entry, ...]:
        return self.runs or (self,)


@dataclass
class Run:
    """Rows and measurements by the identity of their cell."""

    rows: dict[str, Row] = field(default_factory=dict)
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    _groups: dict[tuple[str, str], list[Entry]] = field(default_factory=dict)
    _noise: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Run:
        """Index the rows of one run, or of several runs of the same code with the last row of each cell."""
        run = cls()
        by_key: dict[tuple[str, str], list[Entry]] = {}
        for row in rows:
            place = Place(row.cell)
            run.rows[place.identity] = max(run.rows.get(place.identity, row), row, key=_trouble)
            for entry in _entries(row, place):
                by_key.setdefault((place.identity, entry.quantity), []).append(entry)
        run.entries = {key: _pooled(repeated) for key, repeated in by_key.items()}
        for entry in run.entries.values():
            run._groups.setdefault(_conditions(entry), []).append(entry)
        return run

    def group(self, entry: Entry) -> list[Entry]:
        """Return the same quantity of every method under the same conditions."""
        return self._groups.get(_conditions(entry), [])

    def noise(self, entry: Entry) -> float:
        """Return how far full softmax, timed against a second copy of itself, may be from 1, as a logarithm.

        The comparison is under the same conditions as `entry`; without one the result is 0.
        """
        return self._noise_of_full_softmax(entry)[0]

    def spread(self, entry: Entry) -> float:
        """Return the difference between full softmax's times in different processes of the run, as a logarithm."""
        return self._noise_of_full_softmax(entry)[1]

    def _noise_of_full_softmax(self, entry: Entry) -> tuple[float, float]:
        key = _conditions(entry)
        if key not in self._noise:
            group = self._groups.get(key, [])
            ratios = [baseline.ratio for baseline in group if baseline.is_baseline]
            bounds = [abs(math.log(bound)) for ratio in ratios for bound in (ratio.low, ratio.high) if bound]
            series = [positive(member.ratio.baseline_samples) for member in group]
            series += [positive(member.samples) for member in group if member.is_baseline]
            centres = [math.log(statistics.median(samples)) for samples in series if samples]
            spread = max(centres, default=0.0) - min(centres, default=0.0)
            self._noise[key] = max(bounds, default=0.0), spread
        return self._noise[key]

    @cached_property
    def _loose(self) -> dict[str, list[Row]]:
        loose: dict[str, list[Row]] = {}
        for row in self.rows.values():
            loose.setdefault(_loosely(row.cell), []).append(row)
        return loose

    def nearly(self, cell: Cell) -> str:
        """Describe how a cell of this run differs from `cell`, if only by its data, device or precision; else ""."""
        for row in self._loose.get(_loosely(cell), ()):
            pairs = [
                (name, getattr(cell, name), getattr(row.cell, name))
                for name in ("dataset_sha256", "device", "precision")
            ]
            return "; ".join(f"{name} {a[:12]}, then {b[:12]}" for name, a, b in pairs if a != b)
        return ""


def _trouble(row: Row) -> tuple[bool, bool]:
    """Sort key that makes a failed row, or else one that disagrees, stand for all runs of its cell."""
    return not row.is_measured, not row.agrees


def identify(cell: Cell, **changed: Any) -> str:
    """Return what two cells must share to be the same measurement.

    That is all but the suite, the effort, destinations of output, and the path of data with a checksum. Settings that
    another version of the code did not have count as their defaults.
    """
    fields = {name: getattr(cell, name) for name in _FIELDS} | changed
    defaults, ignored = _settings(cell.task)
    settings = {**defaults, **fields["settings"]}
    if not ignored.isdisjoint(settings):
        settings = {name: value for name, value in settings.items() if name not in ignored}
    dataset = "" if fields["dataset_sha256"] else Path(fields["dataset"]).name
    return _SORTED_JSON.encode({**fields, "suite": "", "dataset": dataset, "settings": settings}).decode()


@cache
def default_settings(task: str) -> Mapping[str, Any]:
    return {name: setting.default for name, setting in registry.settings(task).items()}


def distinguishes(task: str, setting: str) -> bool:
    """Whether cells of a task that differ in a setting are different measurements."""
    return setting not in _settings(task)[1]


@cache
def _settings(task: str) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Return the defaults of a task's settings, and those that do not distinguish cells."""
    destinations = (name for name, setting in registry.settings(task).items() if isinstance(setting, Destination))
    return default_settings(task), frozenset(EFFORT).union(destinations)


@cache
def trains(task: str) -> bool:
    """Whether figures of a task depend on training. A task that this version does not have may train."""
    return task not in registry.tasks() or registry.task(task).load is not None


def definition(measurement: Measurement) -> int:
    """Return the version of the definition of a time or a peak: `DEFINITION` of `timing` or `memory`."""
    return measurement.detail.get("timing" if measurement.unit == "s" else "counting", 1)


def positive(samples: Iterable[float]) -> list[float]:
    return [sample for sample in samples if sample > 0]


def entries(row: Row) -> Iterable[Entry]:
    """Yield the measurements of a row; none if it failed."""
    return _entries(row, Place(row.cell))


def _entries(row: Row, place: Place) -> Iterable[Entry]:
    for measurement in row.measurements if row.is_measured else ():
        yield Entry(row, measurement, place)


def mixed(rows: Iterable[Row]) -> str:
    """Say why rows of the same cell cannot be pooled: their code or the definition of a figure differs; else ""."""
    first: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = first.setdefault(identify(row.cell), {})
        for name, version in _versions(row):
            if known.setdefault(name, version) != version:
                return f"{row.cell.label}: {name} {known[name]} and {version}"
    return ""


def _versions(row: Row) -> Iterable[tuple[str, Any]]:
    if code := row.provenance.code.get("fingerprint"):
        yield "code", code
    for measurement in row.measurements if row.is_measured else ():
        yield f"{measurement.quantity} by definition", definition(measurement)


def _pooled(runs: Sequence[Entry]) -> Entry:
    """Return the mean of the runs' figures with all of their rounds and the widest of their noise intervals."""
    first = runs[0]
    if len(runs) == 1:
        return first
    lows, highs = ([bound for bound in bounds if bound] for bounds in zip(*map(_interval, runs), strict=True))
    ratio = Ratio(
        low=min(lows, default=None),
        high=max(highs, default=None),
        samples=[sample for run in runs for sample in run.ratio.samples],
        baseline_samples=[sample for run in runs for sample in run.ratio.baseline_samples],
    )
    values = [run.value for run in runs if run.value is not None]
    measurement = dataclasses.replace(
        first.measurement,
        value=statistics.fmean(values) if len(values) == len(runs) else math.nan,
        samples=[sample for run in runs for sample in run.samples],
        ratio=ratio,
    )
    return Entry(first.row, measurement, first.place, tuple(runs))


def _interval(entry: Entry) -> tuple[float | None, float | None]:
    return entry.ratio.low, entry.ratio.high


def _conditions(entry: Entry) -> tuple[str, str]:
    return entry.place.conditions, entry.quantity


def _loosely(cell: Cell) -> str:
    vocab = 0 if cell.dataset else cell.vocab  # with a dataset, the size of the vocabulary depends on the data
    return identify(cell, dataset_sha256="", device="", precision="", vocab=vocab)
