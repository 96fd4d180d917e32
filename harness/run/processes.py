"""Rows of cells that are measured in several processes: the joining of processes, and intervals over them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vocabench.harness import registry
from vocabench.harness.measure.machine_load import is_busy
from vocabench.harness.measure.process_spread import Spread, centres, class_deviation, interval, spreads
from vocabench.harness.quantities import class_of_time
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Ratio, Row
from vocabench.harness.tasks.shared.paired import BASELINE


def count(row: Row) -> int:
    """Return the number of processes in which the times of a row were measured."""
    return max((len(measurement.processes) for measurement in row.measurements), default=1) or 1


def is_complete(row: Row) -> bool:
    """Return whether no further process is to measure the row.

    A row that failed or disagrees is complete, and so is one without times, such as of peak memory alone.
    """
    has_times = any(measurement.processes for measurement in row.measurements)
    return row.status != "ok" or not has_times or count(row) >= visits(row.cell)


def visits(cell: Cell) -> int:
    """Return how often a run measures the cell, each time in another process."""
    is_repeated = cell.task in registry.tasks() and registry.task(cell.task).repeat is not None
    return wanted(cell) if is_repeated else 1


def wanted(cell: Cell) -> int:
    """Return the number of processes in which the times of a cell are to be measured."""
    return cell.settings.get("processes", 1)


def class_of(measurement: Measurement) -> str:
    """Return the class of quantities among which the spread between processes is pooled."""
    sides = (measurement.samples, _ratio_of(measurement).baseline_samples)
    return class_of_time(measurement.quantity, min(map(statistics.median, sides)))


def join(cell: Cell, first: Sequence[Measurement], second: Sequence[Measurement]) -> list[Measurement]:
    """Add the times of further processes to measurements of a cell, with intervals by the spread of each time alone.

    Whatever is not a time stays as it was measured first.
    """
    further = {measurement.quantity: measurement for measurement in second if measurement.processes}
    joined = [_joined(each, further[each.quantity]) if each.quantity in further else each for each in first]
    return [_with_spreads([cell], [each])[0] if each.processes else each for each in joined]


def _joined(first: Measurement, second: Measurement) -> Measurement:
    assert first.ratio is not None
    assert second.ratio is not None
    ratio = replace(
        first.ratio,
        samples=[*first.ratio.samples, *second.ratio.samples],
        baseline_samples=[*first.ratio.baseline_samples, *second.ratio.baseline_samples],
    )
    return replace(
        first,
        samples=[*first.samples, *second.samples],
        ratio=ratio,
        detail=first.detail | {"processes": [*first.processes, *second.processes]},
    )


def pool(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with intervals from the spread between processes, shared within their classes of quantities.

    Rows of different code, machines or libraries are not pooled. Rows that were measured in a single process keep their
    intervals.
    """
    measurements = [(row, list(row.measurements)) for row in rows]
    classes: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for number, (row, of_row) in enumerate(measurements):
        for place, measurement in enumerate(of_row):
            if measurement.processes:
                classes.setdefault((_run_of(row), class_of(measurement)), []).append((number, place))
    for members in classes.values():
        cells = [measurements[number][0].cell for number, _ in members]
        pooled = _with_spreads(cells, [measurements[number][1][place] for number, place in members])
        for (number, place), measurement in zip(members, pooled, strict=True):
            measurements[number][1][place] = measurement
    return [replace(row, measurements=of_row) for row, of_row in measurements]


def _run_of(row: Row) -> str:
    origin = row.provenance
    facts = {name: origin.code.get(name) for name in ("commit", "fingerprint")}
    return json.dumps(
        [facts, dict(origin.machine), dict(origin.versions), row.cell.device], sort_keys=True, default=str
    )


def _with_spreads(cells: Sequence[Cell], measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return measurements of one class with intervals by their spreads, unless one process was to measure them."""
    ratios, times = list(map(ratio_centres, measurements)), list(map(time_centres, measurements))
    is_busy_C = [any(is_busy(load) for load in measurement.loads) for measurement in measurements]
    of_ratios, of_times = _spreads(ratios, is_busy_C), _spreads(times, is_busy_C)
    if of_ratios is None or of_times is None:
        return list(measurements)
    deviations = {"class_ratio_deviation": class_deviation(ratios), "class_deviation": class_deviation(times)}
    members = zip(cells, measurements, of_ratios, of_times, strict=True)
    return [_with_spread(*member, deviations) if wanted(member[0]) > 1 else member[1] for member in members]


def _spreads(cells: Sequence[Sequence[float]], is_busy_C: Sequence[bool]) -> list[Spread] | None:
    """Return the spread of each cell of a class, given by its centres.

    Other work on the machine widens the intervals of the cells that it disturbed, and not those of the others: the
    choice depends on the load alone, and so does not favour any result.
    """
    of_all = spreads(cells)
    undisturbed = spreads([values for values, is_busy_cell in zip(cells, is_busy_C, strict=True) if not is_busy_cell])
    if of_all is None or undisturbed is None:
        return of_all
    of_quiet = iter(undisturbed)
    return [of_cell if disturbed else next(of_quiet) for of_cell, disturbed in zip(of_all, is_busy_C, strict=True)]


def ratio_centres(measurement: Measurement) -> list[float]:
    """Return the logarithm of the ratio to full softmax in each process."""
    return centres(_ratio_of(measurement).samples, _rounds(measurement))


def time_centres(measurement: Measurement) -> list[float]:
    """Return the logarithm of the time in each process."""
    return centres(measurement.samples, _rounds(measurement))


def _rounds(measurement: Measurement) -> list[int]:
    return [process["rounds"] for process in measurement.processes]


def _ratio_of(measurement: Measurement) -> Ratio:
    assert measurement.ratio is not None
    return measurement.ratio


def _with_spread(
    cell: Cell, measurement: Measurement, of_ratio: Spread, of_time: Spread, deviations: Mapping[str, float]
) -> Measurement:
    ratio, time = interval(ratio_centres(measurement), of_ratio), interval(time_centres(measurement), of_time)
    spread: dict[str, Any] = {
        "class": class_of(measurement),
        "ratio_deviation": of_ratio.deviation,
        "deviation": of_time.deviation,
        "freedom": of_ratio.freedom,
        **deviations,
    }
    return replace(
        measurement,
        value=time.value,
        low=time.low,
        high=time.high,
        ratio=replace(
            _ratio_of(measurement),
            value=1.0 if cell.method == BASELINE else ratio.value,
            low=ratio.low,
            high=ratio.high,
        ),
        detail=measurement.detail | {"spread": spread},
    )
