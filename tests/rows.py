"""Rows as tests make and read them."""

import json


def row_of(task, cell):
    """What a worker would write for a cell of `task`, a module."""
    result = task.run(cell, lambda text: None)
    row = {
        "cell": cell.to_json(),
        "status": "ok",
        "measurements": [measurement.to_json() for measurement in result.measurements],
        "agreement": {},
    }
    return json.loads(json.dumps(row))


def by_quantity(row):
    return {measurement["quantity"]: measurement for measurement in row["measurements"]}
