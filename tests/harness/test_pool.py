"""Cells in child processes: results, crashes and time-outs become rows, and a killed run goes on where it was."""

import os
import signal
import subprocess
import sys
import time

import pytest

from harness import pool, registry
from harness.cells import Cell, Selection, Suite
from harness.store import Store, read
from impls.errors import BadInput


def oracle_cells(methods):
    selection = Selection(frameworks=["numpy"], precision=["float64"], methods=methods, settings={"training": "False"})
    return Suite.load("check").cells(selection)


def quiet(cell, text):
    pass


def test_finished_cells_are_not_measured_again(tmp_path):
    path, cells = tmp_path / "rows.jsonl", oracle_cells(["full_softmax", "huffman"])
    with Store(path) as store:
        (first,) = pool.run(cells[:1], store, deadline=120, progress=quiet)
    with Store(path) as store:
        (second,) = pool.run(cells, store, deadline=120, progress=quiet)
    assert [r["key"] for r in read(path)] == [c.key for c in cells] == [first["key"], second["key"]]
    assert first["status"] == "ok", first["message"]
    assert first["agreement"]["verdict"] == "agree"
    assert first["provenance"]["code"]["fingerprint"]
    assert first["provenance"]["framework"]["numpy"]


def test_a_cell_past_its_deadline_is_a_row_and_the_next_cell_runs(tmp_path):
    cells = oracle_cells(["full_softmax", "huffman"])
    deadlines = iter([0.05, 120.0])
    with Store(tmp_path / "rows.jsonl") as store:
        rows = [row for cell in cells for row in pool.run([cell], store, deadline=next(deadlines), progress=quiet)]
    assert [row["status"] for row in rows] == ["timeout", "ok"]
    assert rows[0]["message"] == "no result within 0.05 s"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, "oom"), (signal.SIGSEGV, "error")])
def test_a_worker_that_dies_is_a_row(tmp_path, number, status):
    cells = oracle_cells(["sohsm", "full_softmax"])
    killed = []

    def kill_first(cell, text):
        if cell == cells[0] and text and not killed:
            for line in subprocess.check_output(["ps", "-eo", "pid,ppid,args"], text=True).splitlines()[1:]:
                pid, parent, command = line.split(None, 2)
                if int(parent) == os.getpid() and "harness.worker" in command:
                    os.kill(int(pid), number)
                    killed.append(pid)

    with Store(tmp_path / "rows.jsonl") as store:
        rows = list(pool.run(cells, store, deadline=120, progress=kill_first))
    assert killed
    assert [row["status"] for row in rows] == [status, "ok"]
    assert number.name in rows[0]["message"]


def test_an_exception_in_a_task_is_a_row(tmp_path):
    (cell,) = oracle_cells(["full_softmax"])
    broken = type(cell)(**{**cell.to_json(), "method": "no_such_method"})
    with Store(tmp_path / "rows.jsonl") as store:
        (row,) = pool.run([broken], store, deadline=120, progress=quiet)
    assert row["status"] == "error"
    assert "unknown method" in row["message"]


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(BadInput, match=r"device 'cuda': numpy has none here: allowed: cpu"):
        pool.check_device(["numpy"], "cuda")


@pytest.mark.parametrize("framework", [name for name in registry.installed_frameworks() if name != "numpy"])
def test_a_framework_has_the_threads_it_was_given(framework, monkeypatch):
    for name in pool._THREADS:
        monkeypatch.setenv(name, "2")
    with pool.Worker(framework, threads=1) as worker:
        (message,) = worker.ask({"describe": True}, deadline=120)
    assert message["result"]["describe"]["cpu"]["threads"] == "1"


def test_a_killed_run_resumes_and_leaves_no_worker(in_empty_folder):
    command = [sys.executable, "-m", "harness.cli", "check", "-f", "numpy", "--out", "rows.jsonl"]
    environment = {**os.environ, "PYTHONPATH": str(pool.ROOT)}
    path = in_empty_folder / "rows.jsonl"
    kills = 0
    for delay in (0.4, 0.8, 1.2, 1.6):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        kills += process.poll() is None
        process.kill()
        process.wait()
        before = path.read_bytes() if path.exists() else b""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    keys = [row["key"] for row in read(path)]
    assert len(keys) == len(set(keys)) == len(Suite.load("check").cells(Selection(frameworks=["numpy"])))
    assert kills
    time.sleep(1.5)
    assert "--framework numpy" not in subprocess.check_output(["ps", "-eo", "args"], text=True)


def test_a_framework_that_is_done_helps_the_others(monkeypatch, tmp_path):
    """Each cell once; who has none of its own left takes from the end of what another has."""
    slow = [Cell("check", "agreement", "slow", "full_softmax", vocab, 8, 8) for vocab in range(2, 8)]
    quick = Cell("check", "agreement", "quick", "full_softmax", 2, 8, 8)
    measured: dict[str, list[int]] = {}

    def run(cells, store, *, deadline, progress):
        first = None
        for cell in cells:
            first = first or cell.framework
            measured.setdefault(first, []).append(cell.vocab)
            time.sleep(0.2 if first == "slow" else 0.02)
            yield {"key": cell.key}

    monkeypatch.setattr(pool, "run", run)
    with Store(tmp_path / "rows.jsonl") as store:
        rows = list(pool.run_side_by_side([*slow, quick], store, deadline=1, progress=quiet))
    assert sorted(row["key"] for row in rows) == sorted(cell.key for cell in [*slow, quick])
    assert measured["quick"][:3] == [2, 7, 6]
    assert measured["slow"][0] == 2
    assert sorted(measured["quick"][1:] + measured["slow"]) == [cell.vocab for cell in slow]
