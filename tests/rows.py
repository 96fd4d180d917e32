"""Rows as tests make and read them."""

import dataclasses
import json

from vocabench.harness.run.rows import SCHEMA, Measurement, Ratio, Row


def row_of(task, cell):
    """Return the row that a run would keep of a cell of `task`."""
    result = task.run(cell, lambda text: None)
    row = Row(cell.key, cell, "ok", measurements=result.measurements)
    return Row.from_json(json.loads(json.dumps(row.to_json())))


def by_quantity(row):
    return {measurement.quantity: measurement for measurement in row.measurements}


def read_json(path):
    """Return the rows of a results file as dictionaries, which tests can change."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_json(path, rows):
    """Write dictionaries, valid rows or not, as a results file."""
    path.write_text("".join(json.dumps({"schema": SCHEMA, **row}) + "\n" for row in rows), encoding="utf-8")


def with_cell(row, **changes):
    """Return the row of another cell, which differs by `changes`."""
    return dataclasses.replace(row, cell=dataclasses.replace(row.cell, **changes))


def ratio_of(measurement: Measurement) -> Ratio:
    """Return the ratio of a measurement that has one."""
    assert measurement.ratio is not None
    return measurement.ratio


def interval_of(measurement: Measurement) -> tuple[float, float, float]:
    """Return the lower end, the value and the upper end of a ratio with an interval."""
    ratio = ratio_of(measurement)
    assert ratio.low is not None
    assert ratio.value is not None
    assert ratio.high is not None
    return ratio.low, ratio.value, ratio.high
