"""Cells whose times are measured in several processes."""

import dataclasses

import numpy as np
import pytest

from tests.rows import by_quantity, interval_of, ratio_of
from vocabench.harness import cli
from vocabench.harness.commands import calibrate
from vocabench.harness.quantities import SHORT_DECODING, TRAINING
from vocabench.harness.run import doubts, pool, processes, results_files
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Provenance, Ratio, Row
from vocabench.harness.run.store import Store, read
from vocabench.impls.errors import BadInput

SETTINGS = {
    "quantities": ["layer_seconds", "topk_seconds"],
    "processes": 3,
    "rounds": 2,
    "budget": 0.0,
    "checked_tokens": 8,
    "longest_step": 0.0,
    "slow_precision": "measure",
    "baseline_bias": True,
    "decode_rows": 4,
}


def cell_of(method, **settings):
    return Cell("s", "timing", "numpy", method, 60, 8, 40, precision="float64", settings=SETTINGS | settings)


def quiet(cell, text):
    pass


def run(path, cells, deadline=120):
    with Store(path) as store:
        return list(pool.run(cells, store, deadline=deadline, progress=quiet))


@pytest.mark.lengthy
def test_all_cells_are_measured_once_before_any_is_measured_again(tmp_path):
    path, cells = tmp_path / "rows.jsonl", [cell_of("full_softmax"), cell_of("huffman")]
    rows = run(path, cells)
    assert [processes.count(row) for row in rows] == [1, 1, 2, 2, 3, 3]
    assert {row.status for row in rows} == {"ok"}
    assert [row.key for row in rows[:2]] == [cell.key for cell in cells]
    for row in results_files.rows(path):
        for quantity in ("layer_seconds", "topk_seconds", "topk1_seconds"):
            measurement = by_quantity(row)[quantity]
            assert [process["rounds"] for process in measurement.processes] == [2, 2, 2]
            assert len(measurement.samples) == len(ratio_of(measurement).baseline_samples) == 6
    assert run(path, cells) == []


def test_an_interrupted_run_continues_with_the_processes_that_are_missing(tmp_path):
    path, cells = tmp_path / "rows.jsonl", [cell_of("full_softmax"), cell_of("huffman")]
    with Store(path) as store:
        running = pool.run(cells, store, deadline=120, progress=quiet)
        kept = [next(running) for _ in range(3)]
        running.close()
    assert sorted(processes.count(row) for row in results_files.rows(path)) == [1, 2]
    continued = run(path, cells)
    assert len(continued) == 3
    final = {row.key: row for row in results_files.rows(path)}
    for row in kept:
        before, after = by_quantity(row)["layer_seconds"], by_quantity(final[row.key])["layer_seconds"]
        assert after.samples[: len(before.samples)] == before.samples
    assert {processes.count(row) for row in final.values()} == {3}


@pytest.mark.lengthy
def test_a_process_that_fails_costs_no_finished_one(tmp_path, monkeypatch):
    path, cell = tmp_path / "rows.jsonl", cell_of("huffman")
    (tmp_path / "sitecustomize.py").write_text(
        "import dataclasses, os\n"
        "import vocabench.harness.tasks.timing as task\n"
        "def repeat(*arguments):\n"
        "    os._exit(3)\n"
        "task.TASK = dataclasses.replace(task.TASK, repeat=repeat)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    first, second = run(path, [cell])
    assert (second.status, processes.count(second)) == ("ok", 1)
    assert second.message == "1 of 3 processes: then error: the worker was ended with exit code 3"
    assert second.measurements == first.measurements
    monkeypatch.delenv("PYTHONPATH")
    *_, last = run(path, [cell])
    assert (last.message, processes.count(last)) == ("", 3)


def timed_row(method, logs, *, quantity="topk_seconds", seconds=0.001, commit="a", load=None, baseline=1.0):
    """Return a row whose ratio has these logarithms, one for each process of one round."""
    ratios = np.exp(logs)
    facts = load or {"others": 0.0, "stolen": 0.0, "switches": 0.0, "cores": 2}
    measurement = Measurement(
        quantity,
        seconds,
        samples=[seconds] * len(logs),
        ratio=Ratio(2.0, 1.0, 3.0, ratios.tolist(), (baseline * seconds * ratios).tolist()),
        detail={"processes": [{"rounds": 1, **facts} for _ in logs]},
    )
    cell = cell_of(method)
    return Row(cell.key, cell, "ok", measurements=[measurement], provenance=Provenance(code={"commit": commit}))


def width_of(row):
    low, _, high = interval_of(row.measurements[0])
    return np.log(high / low)


def test_the_spread_is_shared_within_a_class_of_times():
    rows = [timed_row(m, [0.0, d, -d]) for m, d in (("huffman", 0.01), ("sohsm", 0.03), ("nce", 0.02))]
    pooled = processes.pool(rows)
    widths = list(map(width_of, pooled))
    assert widths[0] == pytest.approx(widths[1])
    spread = pooled[0].measurements[0].detail["spread"]
    assert (spread["class"], spread["freedom"]) == (SHORT_DECODING, 6)
    (alone,) = processes.pool(rows[:1])
    assert alone.measurements[0].detail["spread"]["ratio_deviation"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    "other",
    [
        timed_row("sohsm", [0.0, 0.3, -0.3], commit="b"),
        timed_row("sohsm", [0.0, 0.3, -0.3], quantity="layer_seconds"),
        timed_row("sohsm", [0.0, 0.3, -0.3], seconds=0.1),
    ],
    ids=["other code", "training", "long decoding"],
)
def test_other_classes_and_other_code_are_not_pooled(other):
    row = timed_row("huffman", [0.0, 0.01, -0.01])
    (alone,), (beside, _) = processes.pool([row]), processes.pool([row, other])
    assert beside == alone


def test_full_softmax_relative_to_itself_is_one_with_the_interval_of_the_copies():
    (row,) = processes.pool([timed_row("full_softmax", [0.1, 0.12, 0.11])])
    low, value, high = interval_of(row.measurements[0])
    assert value == 1.0
    assert 1.0 < low < np.exp(0.11) < high


def test_a_row_of_one_process_keeps_its_interval():
    row = timed_row("huffman", [0.0])
    row = dataclasses.replace(row, cell=cell_of("huffman", processes=1))
    assert processes.pool([row, timed_row("sohsm", [0.0, 0.1, 0.2])])[0] == row


def test_a_busy_machine_is_doubted():
    busy = timed_row("huffman", [0.0] * 3, load={"others": 1.2, "stolen": 0.1, "switches": 9.0, "cores": 2})
    (found,) = doubts.doubts([busy])
    assert found["topk_seconds"].busy_cores == pytest.approx(1.4)
    assert doubts.doubts([timed_row("huffman", [0.0] * 3)]) == [{}]
    (line,) = doubts.warnings([busy])
    assert line.startswith("the machine was busy during 1 of 1 times, with up to 1.4 cores used by others")


def test_times_that_others_disturbed_do_not_widen_the_intervals_of_the_rest():
    busy = {"others": 1.0, "stolen": 0.0, "switches": 9.0, "cores": 2}
    calm = [timed_row(f"method{n}", [0.0, 0.01, -0.01 * n], commit="a") for n in range(3)]
    hit = timed_row("huffman", [0.0, 1.0, -1.0], load=busy)
    alone, beside = processes.pool(calm), processes.pool([*calm, hit])
    assert [width_of(row) for row in beside[:3]] == [width_of(row) for row in alone]
    assert width_of(beside[3]) > 5 * max(map(width_of, alone))
    # Nothing is left to go by where all are disturbed.
    every = processes.pool([timed_row(f"method{n}", [0.0, 0.01, -0.01 * n], load=busy) for n in range(3)])
    assert [width_of(row) for row in every] == [width_of(row) for row in alone]


def test_a_baseline_that_is_off_is_doubted():
    rows = [
        timed_row(name, [0.0] * 3, baseline=factor) for name, factor in (("sohsm", 1), ("huffman", 1.05), ("nce", 2))
    ]
    found = doubts.doubts(rows)
    assert found[:2] == [{}, {}]
    assert found[2]["topk_seconds"].baseline_factor == pytest.approx(2 / 1.05)
    (line,) = doubts.warnings(rows)
    assert "full softmax took 1.90 to 1.90 times as long next to some layers" in line


@pytest.mark.lengthy
def test_the_command_line_takes_processes_and_rounds(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["run", "quick", "-t", "timing", "-f", "torch", "-m", "huffman", "-v", "64"]
    arguments += ["-s", "quantities=layer_seconds", "--processes", "2", "--rounds", "2", "--out", "rows.jsonl"]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "Spread between processes" in printed
    rows = read(tmp_path / "rows.jsonl")
    assert [processes.count(row) for row in rows][-1] == 2
    (layer,) = [m for m in results_files.rows(tmp_path / "rows.jsonl")[0].measurements if m.quantity == "layer_seconds"]
    assert layer.detail["spread"]["class"] == TRAINING


@pytest.mark.lengthy
def test_calibration_prints_the_coverage_by_class(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        cli.main(["calibrate", "-f", "torch", "-v", "64", "--processes", "3", "--each", "2", "--out", "c.jsonl"]) == 0
    )
    printed = capsys.readouterr().out
    assert "Coverage of 95 % intervals over 2 processes" in printed
    assert "| all " in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--each", "1"], "--each 1: allowed: from 2"),
        (["--processes", "2"], "--processes 2: allowed: at least --each, 3"),
    ],
)
def test_too_few_processes_for_a_calibration_are_refused(arguments, message, capsys):
    assert cli.main(["calibrate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_rows_without_processes_have_no_coverage():
    with pytest.raises(BadInput, match="no time was measured in 3 processes"):
        calibrate.table([timed_row("huffman", [0.0, 0.1])], 3)
