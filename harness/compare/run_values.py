"""Values of the processes and runs in which a time was measured: the units whose scatter a comparison counts."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence

from vocabench.harness.compare.matching import Entry, positive
from vocabench.harness.run.rows import Measurement, Ratio, Row

_KEPT = ("timing", "counting")  # details that say how a figure is defined
_NORMAL_95 = 1.96


def has_values(entry: Entry, *, relative: bool) -> bool:
    """Whether `process_values` returns any for a run of the entry."""
    if relative:
        return any(run.is_paired for run in entry.single_runs)
    return any(run.measurement.value > 0 or positive(run.measurement.samples) for run in entry.single_runs)


def process_values(measurement: Measurement, *, relative: bool) -> list[float]:
    """Return the value of each process in which a time was measured: the logarithm of the median over its rounds.

    Args:
        relative: Whether the values are those of full softmax's time divided by this one, rather than of seconds.
    """
    ratio = measurement.ratio or Ratio()
    samples = ratio.samples if relative else measurement.samples
    parts = [positive(part) for part in _by_process(samples, _rounds(measurement))]
    if not any(parts):
        parts = [positive([ratio.value or 0.0 if relative else measurement.value])]
    return [math.log(statistics.median(part)) for part in parts if part]


def reduced(row: Row) -> Row:
    """Return the row with what a comparison needs: the median of each process instead of all of its rounds.

    A comparison holds the rows of all runs in memory, and most of a row are samples and details.
    """
    return dataclasses.replace(row, measurements=[_reduced(measurement) for measurement in row.measurements])


def _reduced(measurement: Measurement) -> Measurement:
    rounds, ratio = _rounds(measurement), measurement.ratio
    if ratio is not None:
        samples, baseline_samples = (_medians(each, rounds) for each in (ratio.samples, ratio.baseline_samples))
        ratio = Ratio(ratio.value, ratio.low, ratio.high, samples, baseline_samples, ratio.extra)
    detail = {name: measurement.detail[name] for name in _KEPT if name in measurement.detail}
    if rounds:
        detail["processes"] = [{"rounds": 1} for _ in rounds]
    return dataclasses.replace(measurement, samples=_medians(measurement.samples, rounds), ratio=ratio, detail=detail)


def _medians(samples: Sequence[float], rounds: Sequence[int]) -> list[float]:
    """Return the median of each process that has a finite sample."""
    if not samples:
        return []
    parts = ([value for value in part if math.isfinite(value)] for part in _by_process(samples, rounds))
    return [statistics.median(part) for part in parts if part]


def _rounds(measurement: Measurement) -> list[int]:
    return [process["rounds"] for process in measurement.processes]


def _by_process(samples: Sequence[float], rounds: Sequence[int]) -> list[Sequence[float]]:
    """Split the samples by process. If their rounds are not known, all samples are of one process."""
    if not rounds or sum(rounds) != len(samples):
        return [samples]
    ends = list(itertools.accumulate(rounds))
    return [samples[end - count : end] for count, end in zip(rounds, ends, strict=True)]


def unit_values(sides: Sequence[Entry], *, relative: bool) -> tuple[list[list[float]], str]:
    """Return the values of the units of each side, and what a unit is.

    With several runs on any side, a unit is a run, because runs may differ by more than their processes do. With one
    run on each side, it is a process.
    """
    runs = [
        [values for run in side.single_runs if (values := process_values(run.measurement, relative=relative))]
        for side in sides
    ]
    if max(map(len, runs)) <= 1:
        return [values for (values,) in runs] if all(runs) else [[] for _ in runs], "process"
    means = [[statistics.fmean(values) for values in side] for side in runs]
    repeated = min((len(values) for side in runs for values in side), default=1) > 1
    return means, "run of several processes" if repeated else "run"


def error_within(entry: Entry) -> float:
    """Return the standard error of a paired time of one process that its rounds show, as a logarithm."""
    low, high = entry.ratio.low, entry.ratio.high
    return math.log(high / low) / 2 / _NORMAL_95 if low and high and high > low else 0.0
