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
    assert left.seconds() == 120.0  # by earlier rows
    left.visited(CELL, 500.0)  # imports the framework and compiles kernels
    assert left.seconds() == 110.0
    left.visited(CELL, 520.0)  # 10 seconds, in twice the time
    assert left.seconds() == pytest.approx(200.0)
    left.visited(CELL, 540.0)
    for number in range(3):
        left.visited(OTHER, 600.0 + 60 * number)
    assert left.seconds() == 0


def test_the_first_visit_of_each_framework_tells_no_rate():
    by_jax = dataclasses.replace(CELL, framework="jax")
    left = estimates.TimeLeft([CELL, by_jax], {})
    left.visited(CELL, 100.0)
    assert left.seconds() is None
    left.visited(CELL, 102.0)
    left.visited(by_jax, 302.0)
    assert left.seconds() == pytest.approx(2.0 * 3)


def test_visits_that_are_not_needed_are_not_taken_for_fast_ones():
    left = estimates.TimeLeft([CELL, OTHER], {CELL.key: 10.0, OTHER.key: 10.0})
    left.visited(CELL, 5.0)
    left.visited(OTHER, 25.0)
    left.unneeded(OTHER, 2)  # it was skipped
    assert left.seconds() == pytest.approx(2 * 20.0)


def test_a_cell_without_earlier_rows_counts_as_the_mean():
    left = estimates.TimeLeft([CELL, OTHER], {CELL.key: 10.0})
    for number in range(4):
        left.visited(CELL if number < 3 else OTHER, 10.0 * number)
    assert left.seconds() == pytest.approx(20.0)


def test_cells_are_expected_to_be_skipped_like_others_of_their_size():
    large = dataclasses.replace(CELL, vocab=10**6)
    also_large = dataclasses.replace(OTHER, vocab=10**6)
    left = estimates.TimeLeft([CELL, OTHER, large, also_large], {})
    for number in range(3):
        left.visited(CELL, 60.0 * number)  # the first one tells nothing
    assert left.seconds() == 9 * 60.0
    left.visited(large, 121.0)
    left.unneeded(large, 2)
    assert left.seconds() == 3 * 60.0 + 3 * 1.0
