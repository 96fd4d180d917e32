"""Estimates of time from earlier rows and from the cells measured so far."""

import dataclasses
import json

import pytest

from vocabench.harness.run import estimates, provenance
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Provenance, Row

CELL = Cell("s", "timing", "torch", "sohsm", vocab=1000, dim=8, tokens=9, settings={"processes": 3})
OTHER = dataclasses.replace(CELL, method="huffman")


def write(path, *rows):
    path.write_text("".join(json.dumps(row.to_json()) + "\n" for row in rows))
    return path


def row(seconds, cell=CELL, status="ok", **machine):
    origin = Provenance(machine={**provenance.machine(), **machine}, seconds=seconds)
    return Row(cell.key, cell, status, provenance=origin)


@pytest.mark.parametrize("field", ["key", "status", "provenance", "machine", "seconds"])
@pytest.mark.parametrize("value", [None, [], {}, "x", -1, 10**400, float("nan"), float("inf")])
def test_a_line_with_any_value_in_a_field_is_passed_over(field, value, tmp_path):
    fields = row(5.0).to_json()
    holder = fields if field in fields else fields["provenance"]
    assert holder[field]
    holder[field] = value
    file = write(tmp_path / "a.jsonl", row(7.0))
    with file.open("a") as end:
        end.write(json.dumps(fields) + "\n")
    assert estimates.earlier_seconds([CELL], [file]) == {CELL.key: 7.0}


def test_seconds_are_the_mean_of_measured_rows_of_this_machine(tmp_path):
    file = write(
        tmp_path / "a.jsonl", row(4.0), row(6.0), row(90.0, status="timeout"), row(90.0, cpu="another"), row(None)
    )
    with file.open("a") as end:
        end.write('not JSON\n[1]\n{"key": 5}\n')
    seconds = estimates.earlier_seconds([CELL, OTHER], [tmp_path / "none.jsonl", file])
    assert seconds == {CELL.key: 5.0}
    assert estimates.total([CELL], seconds) == 15.0  # in three processes
    assert estimates.total([CELL, OTHER], seconds) is None


def test_the_time_left_follows_the_weights_of_the_cells():
    left = estimates.TimeLeft([CELL, OTHER], {CELL.key: 10.0, OTHER.key: 30.0})
    assert left.seconds(5.0) is None
    left.visited(CELL)  # 10 of 120 seconds are done, in twice the time
    assert left.seconds(20.0) == pytest.approx(220.0)
    left.visited(CELL, 2)
    left.visited(OTHER, 3)
    assert left.seconds(100.0) == 0


def test_a_cell_without_earlier_rows_counts_as_the_mean():
    left = estimates.TimeLeft([CELL, OTHER], {CELL.key: 10.0})
    left.visited(CELL, 3)
    assert left.seconds(30.0) == pytest.approx(30.0)
