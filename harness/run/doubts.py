"""Reasons to doubt rows: a busy machine, a full softmax slower or faster than elsewhere, data that was trained on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vocabench.harness.measure.machine_load import is_busy
from vocabench.harness.run.rows import Measurement, Row

# What is wrong with a share of a split, by its name in the details of a score.
_SHARED = {
    "shared_with_training": "is in the training split too: scores flatter the models",
    "transcripts_in_training": "has transcripts of the training split: a model may know them by heart",
}

_OFF = 0.1  # relative difference of full softmax's time from that in other cells


@dataclass(frozen=True)
class Doubt:
    """What speaks against a time.

    Attributes:
        busy_cores: Number of cores that other processes or other virtual machines used, at worst, if that was too many.
        baseline_factor: Time of full softmax next to the layer, relative to that in the other cells, if it is off.
    """

    busy_cores: float | None = None
    baseline_factor: float | None = None

    def __bool__(self) -> bool:
        return self.busy_cores is not None or self.baseline_factor is not None


def doubts(rows: Sequence[Row]) -> list[dict[str, Doubt]]:
    """Return the doubts about the times of each row, by quantity."""
    factors = _baseline_factors(rows)
    found: list[dict[str, Doubt]] = []
    for number, row in enumerate(rows):
        by_quantity = {m.quantity: Doubt(_busy_cores(m), factors.get((number, m.quantity))) for m in row.measurements}
        found.append({quantity: doubt for quantity, doubt in by_quantity.items() if doubt})
    return found


def warnings(rows: Sequence[Row]) -> Iterable[str]:
    """Yield a line for each reason to measure again."""
    every = [doubt for by_quantity in doubts(rows) for doubt in by_quantity.values()]
    timed = sum(bool(measurement.processes) for row in rows for measurement in row.measurements)
    busy = [doubt.busy_cores for doubt in every if doubt.busy_cores is not None]
    if busy:
        yield (
            f"the machine was busy during {len(busy)} of {timed} times, with up to {max(busy):.1f} cores used by "
            "others: measure again when nothing else runs"
        )
    off = [doubt.baseline_factor for doubt in every if doubt.baseline_factor is not None]
    if off:
        yield (
            f"full softmax took {min(off):.2f} to {max(off):.2f} times as long next to some layers as next to others "
            f"({len(off)} of {timed} times): ratios of different layers may not be comparable"
        )
    for name, told in _SHARED.items():
        shares = {
            (row.cell.dataset, measurement.detail["split"]): measurement.detail[name]
            for row in rows
            for measurement in row.measurements
            if measurement.detail.get(name)
        }
        for (dataset, split), share in shares.items():
            yield f"{share:.1%} of the {split} split of {dataset} {told}"


def _busy_cores(measurement: Measurement) -> float | None:
    busy = [load for load in measurement.loads if is_busy(load)]
    return max((load["others"] + load["stolen"] * load["cores"] for load in busy), default=None)


def _baseline_factors(rows: Sequence[Row]) -> dict[tuple[int, str], float]:
    """Return how far off the time of full softmax is, by number of the row and quantity, where it is too far off."""
    same: dict[tuple[object, ...], list[tuple[int, float]]] = {}
    for number, row in enumerate(rows):
        cell = row.cell
        if cell.task not in ("timing", "parallel"):
            continue  # elsewhere its weights differ from cell to cell
        settings = [cell.settings.get(name) for name in ("decode_rows", "devices")]
        shape = (cell.vocab, cell.dim, cell.tokens, cell.precision, cell.device, *settings)
        for measurement in row.measurements:
            samples = [] if measurement.ratio is None else measurement.ratio.baseline_samples
            if finite := [sample for sample in samples if math.isfinite(sample)]:
                key = (cell.framework, measurement.quantity, measurement.detail.get("timing"), *shape)
                same.setdefault(key, []).append((number, statistics.median(finite)))
    factors: dict[tuple[int, str], float] = {}
    for key, members in same.items():
        median = statistics.median(seconds for _, seconds in members)
        for place, (number, seconds) in enumerate(members):
            # Of two cells, either may be off. The median of more is that of cells that are not.
            factor = seconds / (members[1 - place][1] if len(members) == 2 else median)
            if abs(math.log(factor)) > math.log1p(_OFF):
                factors[number, str(key[1])] = factor
    return factors
