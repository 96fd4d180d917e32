"""The task `parallel`: layers whose words are split over devices are checked and timed in several processes."""

import dataclasses
import os
import signal

import pytest

from vocabench.harness import cli, registry
from vocabench.harness.measure.lockstep import Lockstep, in_processes
from vocabench.harness.measure.timing import paired
from vocabench.harness.report.headline import headline
from vocabench.harness.run import pool, results_files
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.store import Store
from vocabench.harness.run.suites import Suite
from vocabench.harness.tasks import parallel
from vocabench.impls.errors import BadInput, Unsupported

FRAMEWORKS = [name for name in ("torch", "jax") if registry.is_installed(name)]
SETTINGS = {name: setting.default for name, setting in parallel.SETTINGS.items()}
SETTINGS |= {"quantities": ["layer_seconds", "topk_seconds", "sample_seconds", "entropy_seconds", "peak_bytes"]}
SMALL = SETTINGS | {"processes": 2, "rounds": 2, "budget": 0.0, "decode_rows": 4, "checked_tokens": 6}
CELL = Cell("s", "parallel", "torch", "full_softmax", 61, 16, 24, settings=SMALL)


def quiet(text):
    pass


def row_of(cell, folder):
    with Store(folder / "rows.jsonl") as store:
        rows = list(pool.run([cell], store, deadline=300, progress=lambda cell, text: None))
    return rows[-1]


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", ["fused_softmax", "sohsm", "huffman"])
def test_a_cell_is_checked_and_timed_in_two_processes(framework, method, tmp_path):
    row = row_of(dataclasses.replace(CELL, framework=framework, method=method, vocab=601), tmp_path)
    assert (row.status, row.message, row.verdict) == ("ok", "", "agree")
    measured = {measurement.quantity: measurement for measurement in row.measurements}
    assert {"layer_seconds", "topk_seconds", "topk1_seconds", "sample_seconds", "entropy_seconds"} <= measured.keys()
    for quantity in ("layer_seconds", "topk_seconds"):
        assert measured[quantity].value > 0
        assert measured[quantity].ratio.value > 0
        assert len(measured[quantity].processes) == 2
        assert "over 2" in measured[quantity].detail["formulation"]
    whole, held = measured["parameters"].value, measured["device_parameters"].value
    assert whole / 2 <= held < whole  # projections and room for clusters to grow are on both
    assert "layer" in headline(row)


@pytest.mark.parametrize("task", ["parallel", "timing"])
@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="torch is not installed")
def test_a_cell_without_times_is_measured_once(task, tmp_path):
    settings = {name: setting.default for name, setting in registry.task(task).settings.items()}
    cell = dataclasses.replace(CELL, task=task, settings=settings | {"quantities": ["peak_bytes"]})
    row = row_of(cell, tmp_path)
    assert (row.status, row.message) == ("ok", "")
    assert len(results_files.rows(tmp_path / "rows.jsonl")) == 1
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 1


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="torch is not installed")
def test_ranks_that_are_gone_end_the_others_with_one_line(monkeypatch):
    with pytest.raises(
        RuntimeError, match=r"^process 1 of 2 ended with exit code -9$|^process 0: LostRank: "
    ) as raised:
        in_processes("torch", [{}, {}], _lose_a_rank, progress=quiet)
    assert len(str(raised.value).splitlines()) == 1


def _lose_a_rank(rank, folder, progress):
    joined = registry.adapter("torch").parallel()
    assert joined is not None
    part = joined.join(2, "cpu", rank, folder)
    part.highest(1.0)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    part.highest(2.0)


def test_what_one_process_raises_ends_all():
    with pytest.raises(BadInput, match="rank 1: allowed: rank 0"):
        in_processes("numpy", [{"A": "1"}, {"A": "2"}], _refuse_one, progress=quiet)
    assert "A" not in os.environ


def test_the_result_is_that_of_the_first_process_with_its_progress():
    told = []
    assert in_processes("numpy", [{"A": "1"}, {"A": "2"}], _environment, progress=told.append) == "1"
    assert told == ["0"]


def _refuse_one(rank, folder, progress):
    if rank == 1:
        raise BadInput("rank 1: allowed: rank 0")


def _environment(rank, folder, progress):
    progress(str(rank))
    return os.environ["A"]


def test_processes_decide_by_the_slowest_times():
    """Calls that take long in another process alone are as few as those that take long here."""
    calls = []

    def clock():
        return Lockstep(lambda seconds: max(seconds, 0.05))

    result = paired(
        [lambda: calls.append("a")], [lambda: calls.append("b")], rounds=9, budget_seconds=0.3, clock=clock()
    )
    assert result.other.seconds.value == pytest.approx(0.05)
    assert result.other.turns == 1
    assert len(result.ratios) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"framework": "tensorflow"}, "full_softmax in tensorflow with its words over 2 devices: allowed: another fra"),
        ({"method": "adaptive_softmax"}, r"adaptive_softmax in torch .*: allowed: full_softmax, "),
        ({"device": "cuda"}, r"2 devices of cuda: allowed: cuda, and the \d that are here"),
    ],
)
def test_what_cannot_be_split_here_is_skipped(changes, message):
    cell = dataclasses.replace(CELL, **changes)
    if not registry.is_installed(cell.framework):
        pytest.skip(f"{cell.framework} is not installed")
    with pytest.raises(Unsupported, match=message):
        parallel.run(cell, quiet)


def test_devices_turn_the_timing_cells_of_a_suite_into_parallel_ones():
    cells = Suite.load("llm").cells(Selection(["torch"], ["fused_softmax"], [50257], devices=4))
    assert {cell.task for cell in cells} == {"parallel"}
    assert {cell.settings["devices"] for cell in cells} == {4}
    assert {cell.settings["decode_rows"] for cell in cells} == {64}
    assert {cell.settings["longest_step"] for cell in cells} == {5}
    assert [cell.precision for cell in cells] == ["float32", "bfloat16"]
    plain = Suite.load("quick").cells(Selection(["torch"], ["fused_softmax"], [10000], devices=2))
    assert {cell.task for cell in plain} == {"parallel"}
    assert all("beam_seconds" not in cell.settings["quantities"] for cell in plain)


def test_a_suite_without_timing_has_no_cells_to_split(capsys):
    assert cli.main(["run", "documents", "--devices", "2"]) == 2
    assert "no cell left under these filters" in capsys.readouterr().err


@pytest.mark.parametrize("devices", ["1", "0", "5000"])
def test_a_wrong_number_of_devices_is_refused(devices, capsys):
    assert cli.main(["run", "llm", "--devices", devices]) == 2
    assert f"devices={devices}: allowed: " in capsys.readouterr().err


@pytest.mark.lengthy
@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="torch is not installed")
def test_a_run_over_devices_prints_its_own_table(in_empty_folder, capsys):
    command = ["run", "llm", "-f", "torch", "-m", "fused_softmax,huffman", "-v", "500", "--dim", "16", "--devices", "2"]
    assert cli.main([*command, "--precision", "float32", "-s", "decode_rows=4", "--out", "rows.jsonl"]) == 0
    printed = capsys.readouterr().out
    assert "Words over 2 devices, 500 words" in printed
    assert "parameters of a device" in printed
    rows = results_files.rows(in_empty_folder / "rows.jsonl")
    assert {row.status for row in rows} == {"ok"}
