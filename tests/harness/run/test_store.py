"""The store keeps finished rows, whatever happens to the file."""

import json
import math
import multiprocessing
import os
import signal
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabench.harness.run import store
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, OtherSchema, Row
from vocabench.impls.errors import BadInput

BEGIN = b'{"schema": 1, '


CELL = Cell("quick", "timing", "torch", "sohsm", 1000, 64, 128)


def row(key, status="ok", **more):
    return Row(key, CELL, status, **more)


def test_rows_come_back_in_order(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    with store.Store(path) as rows:
        for key in "abc":
            rows.append(row(key))
        assert "b" in rows
        assert "z" not in rows
    assert [r.key for r in store.read(path)] == ["a", "b", "c"]


def test_a_closed_store_refuses_rows(tmp_path):
    with store.Store(tmp_path / "rows.jsonl") as rows:
        rows.append(row("a"))
    other = tmp_path / "other"  # it may get the descriptor that the store had
    with other.open("w"), pytest.raises(ValueError, match="is closed"):
        rows.append(row("b"))
    assert other.read_text() == ""
    assert [r.key for r in store.read(tmp_path / "rows.jsonl")] == ["a"]


def test_infinity_becomes_null(tmp_path):
    path = tmp_path / "rows.jsonl"
    with store.Store(path) as rows:
        rows.append(row("a", measurements=[Measurement("perplexity", math.inf, [math.nan, 1.0])]))
    (fields,) = json.loads(path.read_text())["measurements"]
    assert (fields["value"], fields["samples"]) == (None, [None, 1.0])
    (measurement,) = store.read(path)[0].measurements
    assert math.isnan(measurement.value)
    assert measurement.finite_value is None


@given(st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_a_truncated_file_is_refused_by_readers_and_repaired_by_a_run(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "rows.jsonl"
    with store.Store(path) as rows:
        for key in ("a", "b", "c", "d"):
            rows.append(row(key))
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    left = path.read_bytes()
    if left and not left.endswith(b"\n"):
        with pytest.raises(BadInput, match="cut in the middle"):
            store.read(path)
    with store.Store(path) as rows:
        finished = [key for key in ("a", "b", "c", "d") if key in rows]
        assert len(finished) == left.count(b"\n")
        rows.append(row("e"))
    assert [r.key for r in store.read(path)] == [*finished, "e"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2: not a JSON row"),
        ("[1, 2]", "line 2: schema version None"),
        ('{"schema": 99}', "line 2: schema version 99"),
        ('{"schema": true}', "line 2: schema version True"),
        ('{"schema": 1.0}', r"line 2: schema version 1\.0"),
        ('{"schema": 1, "key": "x"}', "line 2: not a row: cell, status, measurements, provenance missing"),
        ("[" * 100_000, "line 2: not a JSON row"),
    ],
)
def test_a_damaged_line_costs_itself_and_a_warning(tmp_path, line, message):
    path = tmp_path / "rows.jsonl"
    with store.Store(path) as rows:
        rows.append(row("a"))
    first = path.read_bytes()
    damaged = first + line.encode() + b"\n" + first.replace(b'"a"', b'"b"')
    path.write_bytes(damaged)
    with pytest.warns(store.DamagedLine, match=f"rows.jsonl, {message}: this line is left out"):
        assert [stored.key for stored in store.read(path)] == ["a", "b"]
    with pytest.warns(store.DamagedLine, match=message):
        rows = store.Store(path)
    with rows:
        assert [key in rows for key in "abc"] == [True, True, False]
        rows.append(row("c"))
    assert path.read_bytes().startswith(damaged)
    with pytest.warns(store.DamagedLine):
        assert [stored.key for stored in store.read(path)] == ["a", "b", "c"]


def test_a_file_without_any_row_is_refused_with_its_first_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"schema": 99}\nnot json\n')
    for open_file in (store.read, store.Store):
        with pytest.raises(OtherSchema, match="line 1: schema version 99: allowed: 1"):
            open_file(path)


def test_many_damaged_lines_are_counted(tmp_path):
    path = tmp_path / "rows.jsonl"
    with store.Store(path) as rows:
        rows.append(row("a"))
    path.write_text(path.read_text() + "damaged\n" * 40)
    with pytest.warns(store.DamagedLine) as warned:
        store.read(path)
    assert len(warned) == 6
    assert "line 7 and below: 35 more lines" in str(warned[-1].message)


@given(st.lists(st.text(), max_size=5))
@settings(max_examples=100, deadline=None)
def test_any_text_is_refused_with_one_line(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("fuzz") / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    with pytest.raises(BadInput, match="results file"):
        store.read(path)


@given(st.binary(max_size=60).filter(lambda rest: not BEGIN.startswith(rest.rpartition(b"\n")[2][: len(BEGIN)])))
@settings(max_examples=60, deadline=None)
def test_a_file_without_rows_stays_unchanged(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("other") / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="results file"):
        store.Store(path)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_zeros_at_the_end_as_of_a_lost_power_supply_are_moved(tmp_path):
    path = tmp_path / "rows.jsonl"
    with store.Store(path) as rows:
        rows.append(row("a"))
    path.write_bytes(path.read_bytes() + bytes(100))
    with store.Store(path) as rows:
        assert "a" in rows
        rows.append(row("b"))
    assert (tmp_path / "rows.jsonl.partial").read_bytes() == bytes(100)
    assert [stored.key for stored in store.read(path)] == ["a", "b"]


def test_an_incomplete_row_is_moved_to_an_unused_name(tmp_path):
    path = tmp_path / "rows.jsonl"
    (tmp_path / "rows.jsonl.partial").write_text("mine")
    path.write_bytes(BEGIN + b'"key": "a')
    with store.Store(path) as rows:
        assert rows.cut == tmp_path / "rows.jsonl.partial2"
    assert (tmp_path / "rows.jsonl.partial2").read_bytes() == BEGIN + b'"key": "a'
    assert (tmp_path / "rows.jsonl.partial").read_text() == "mine"
    assert path.read_bytes() == b""
    with store.Store(path) as rows:
        assert rows.cut is None


def test_paths_that_cannot_be_written_are_refused(tmp_path):
    with pytest.raises(BadInput, match="Is a directory"):
        store.Store(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="allowed: a place that can be written"):
        store.Store(tmp_path / "file" / "rows.jsonl")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_error_line_and_leaves_no_incomplete_row(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    with store.Store(path) as rows:
        rows.append(row("a"))
        real_write = os.write

        def write_part_then_fail(file, data):
            if len(data) > 40:
                return real_write(file, data[:40])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", lambda f, d: write_part_then_fail(f, d) if len(d) != 40 else real_write(f, d))
        monkeypatch.setattr(os, "fsync", lambda f: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(BadInput, match="No space left on device: rows so far are kept"):
            rows.append(row("b"))
        monkeypatch.undo()
        assert "b" not in rows
        rows.append(row("c"))
    assert [r.key for r in store.read(path)] == ["a", "c"]


def test_two_runs_cannot_write_the_same_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    with store.Store(path), pytest.raises(BadInput, match="in use by another run"):
        store.Store(path)


def append_forever(path):
    with store.Store(path) as rows:
        number = 0
        while True:
            rows.append(row(f"{os.getpid()}-{number}", message="x" * 3000))
            number += 1


def test_twenty_kills_lose_nothing(tmp_path):
    path = tmp_path / "rows.jsonl"
    # The fork server is a new process: this one may have a framework loaded, whose threads do not survive a fork.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    path.touch()
    earlier_keys: list[str] = []
    for number in range(20):
        process = context.Process(target=append_forever, args=(path,))
        size = path.stat().st_size
        process.start()
        while path.stat().st_size == size and process.is_alive():
            time.sleep(0.001)
        time.sleep(0.001 * number)  # during one of the writes
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with store.Store(path):
            pass
        keys = [r.key for r in store.read(path)]
        assert keys[: len(earlier_keys)] == earlier_keys
        earlier_keys = keys
    assert all(json.loads(line) for line in path.read_text().splitlines())
    assert len(earlier_keys) == len(set(earlier_keys)) > 20


def test_failed_cells_can_be_measured_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    with store.Store(path) as rows:
        rows.append(row("a", status="timeout"))
        rows.append(row("b"))
    with store.Store(path) as rows:
        assert "a" in rows
    with store.Store(path, again=("timeout",)) as rows:
        assert "a" not in rows
        assert "b" in rows
        rows.append(row("a"))
    assert [r.status for r in store.latest(store.read(path))] == ["ok", "ok"]


def test_a_refused_file_is_not_left_in_use(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("not a row\n")
    with pytest.raises(BadInput, match="line 1"):
        store.Store(path)
    path.write_text("")
    with store.Store(path):
        pass
