"""Files of many rows are read and compared in a time that grows with their number, and stays near that of parsing."""

import dataclasses
import itertools
import json
import time

import pytest

from tests import ROOT
from vocabench.harness.report.over_seeds import with_estimates
from vocabench.harness.report.rows import flatten
from vocabench.harness.run import store

COPIES = 3
# Times are relative to that of Python's JSON parser on the same lines, which depends on the machine as they do. Reading
# took 1.9 times as long; the limits are generous.
LIMITS = {"read": 5.0, "flatten": 10.0}


@pytest.fixture(scope="module")
def lines():
    return [line for path in sorted((ROOT / "results").glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def _seconds(function):
    """Return the CPU time of the faster one of two calls, and the result."""
    times = []
    for _ in range(2):
        begin = time.process_time()
        result = function()
        times.append(time.process_time() - begin)
    return min(times), result


def test_reading_rows_takes_little_longer_than_parsing_them(lines, tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    parsing, _ = _seconds(lambda: [json.loads(line) for line in lines])
    reading, rows = _seconds(lambda: store.read(path))
    assert len(rows) == len(lines)
    assert reading < LIMITS["read"] * parsing


@pytest.mark.lengthy
def test_records_of_many_seeds_take_little_longer_than_parsing_rows(lines, tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    parsing, _ = _seconds(lambda: [json.loads(line) for line in lines])
    rows = [
        dataclasses.replace(row, cell=dataclasses.replace(row.cell, seed=row.cell.seed + 100 * copy))
        for row, copy in itertools.product(store.read(path), range(COPIES))
    ]
    making, records = _seconds(lambda: with_estimates(flatten(rows)))
    assert len(records) > COPIES * len(lines)
    assert making < LIMITS["flatten"] * COPIES * parsing


@pytest.mark.parametrize("text", ["123456789012345678901234567890", "-9223372036854775809", "1e400"])
def test_numbers_beyond_64_bits_are_refused_as_such(text, lines, tmp_path):
    path = tmp_path / "rows.jsonl"
    row = json.loads(lines[0])
    row["cell"]["seed"] = "SEED"
    path.write_text(json.dumps(row).replace('"SEED"', text) + "\n")
    with pytest.raises(ValueError, match=r"beyond 64 bits|inf"):
        store.read(path)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_what_is_not_json_is_no_row(text, lines, tmp_path):
    path = tmp_path / "rows.jsonl"
    row = json.loads(lines[0])
    row["cell"]["seed"] = "SEED"
    path.write_text(json.dumps(row).replace('"SEED"', text) + "\n")
    with pytest.raises(ValueError, match="not a JSON row"):
        store.read(path)
