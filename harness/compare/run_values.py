"""Values of the processes and runs in which a time was measured: the units whose scatter a comparison counts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from vocabench.harness.compare.matching import Entry, positive
from vocabench.harness.run.rows import Measurement, Ratio

_PROCESSES = "processes"  # detail of a measurement that was repeated in several processes
_NORMAL_95 = 1.96


def process_values(measurement: Measurement, *, relative: bool) -> list[float]:
    """Return the value of each process in which a time was measured.

    A measurement of several processes holds their values in its detail: logarithms of full softmax's time divided by
    its own, or of its seconds if it was not paired. Any other measurement is of one process.

    Args:
        relative: Whether the values are relative to full softmax, rather than seconds.
    """
    ratio = measurement.ratio or Ratio()
    is_paired = bool(ratio.value or positive(ratio.samples))
    stored = measurement.detail.get(_PROCESSES)
    if isinstance(stored, list) and relative == is_paired:
        values = [float(value) for value in stored if isinstance(value, int | float) and math.isfinite(value)]
        if values:
            return values
    if relative:
        # The ratio of full softmax to itself is stored as 1.
        ratios = positive(ratio.samples) or positive([ratio.value or 0.0])
        return [math.log(statistics.median(ratios))] if ratios else []
    seconds = positive(measurement.samples) or positive([measurement.value])
    return [math.log(statistics.median(seconds))] if seconds else []


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
