"""Cells in child processes: results, crashes and timeouts become rows, and an interrupted run resumes."""

import dataclasses
import io
import json
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from vocabench.harness import registry
from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.harness.run import devices, pool, provenance, results_files, worker
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.store import Store, read
from vocabench.harness.run.suites import Suite
from vocabench.impls.errors import BadInput


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
    assert [r.key for r in read(path)] == [c.key for c in cells] == [first.key, second.key]
    assert first.status == "ok", first.message
    assert first.verdict == "agree"
    assert first.provenance.code["fingerprint"]
    assert first.provenance.framework["numpy"]
    assert first.provenance.framework["freed_memory"]


def test_a_cell_starts_without_the_memory_that_earlier_ones_have_freed(monkeypatch):
    def run(cell, progress):
        done.append("run")
        raise BadInput("enough")

    done = []
    (cell,) = oracle_cells(["full_softmax"])
    monkeypatch.setattr(worker.memory, "give_back_freed", lambda: done.append("gave back"))
    monkeypatch.setattr(worker.registry, "task", lambda name: SimpleNamespace(run=run))
    for _ in range(2):
        worker._measure({"cell": cell.to_json()}, io.StringIO())
    assert done == ["gave back", "run"] * 2


def test_a_checkout_in_the_current_folder_is_not_measured(tmp_path, monkeypatch):
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("raise SystemExit('another version')")
    monkeypatch.chdir(tmp_path)
    with Store(tmp_path / "rows.jsonl") as store:
        (row,) = pool.run(oracle_cells(["full_softmax"]), store, deadline=120, progress=quiet)
    assert row.status == "ok", row.message


def test_a_cell_past_its_deadline_is_a_row_and_the_next_cell_runs(tmp_path):
    cells = oracle_cells(["full_softmax", "huffman"])
    deadlines = iter([0.05, 120.0])
    with Store(tmp_path / "rows.jsonl") as store:
        rows = [row for cell in cells for row in pool.run([cell], store, deadline=next(deadlines), progress=quiet)]
    assert [row.status for row in rows] == ["timeout", "ok"]
    assert rows[0].message == "no result within 0.05 s"


# Code that a worker runs instead of the cell, and the status and message of the row. `say` writes to the answers' pipe.
FAULTS = {
    "hangs": ("time.sleep(600)", "timeout", "no result within 1 s"),
    "hangs while reporting progress": ("while True: progress('busy')", "timeout", "no result within 1 s"),
    "closes the pipe and hangs": ("os.close(answers); time.sleep(600)", "timeout", "no result within 1 s"),
    "crashes": ("os.kill(os.getpid(), signal.SIGSEGV)", "error", "the worker was killed by SIGSEGV"),
    "aborts": ("print('assertion failed', flush=True); os.abort()", "error", "killed by SIGABRT: assertion failed"),
    "exits": ("os._exit(3)", "error", "the worker was ended with exit code 3"),
    "exits with code 0": ("os._exit(0)", "error", "the worker was ended with exit code 0"),
    "exits with a message": ("sys.exit('no more')", "error", "the worker was ended with exit code 1: no more"),
    "is killed by a person": ("os.kill(os.getpid(), signal.SIGKILL)", "error", "by SIGKILL; "),
    "allocates too much": ("limit(); numpy.ones(1 << 40)", "oom", "MemoryError: Unable to allocate 8.00 TiB"),
    "exhausts memory": ("limit(); held = [bytearray(1 << 20) for _ in range(1 << 14)]", "oom", "MemoryError"),
    "writes random bytes": ("say(b'\\x00\\xff\\n' * 9)", "error", r"an invalid answer: b'\x00\xff'"),
    "writes a number": ("say(b'3\\n')", "error", "an invalid answer: b'3'"),
    "writes another object": ("say(b'{}\\n')", "error", "an invalid answer: b'{}'"),
    "nests endlessly": ("say(b'[' * 100_000 + b'\\n')", "error", "an invalid answer: b'[[["),
    "writes endlessly": ("while True: say(b'x' * 4096)", "error", "an invalid answer: b'xxx"),
    "answers an empty object": ("say(b'{\"result\": {}}\\n')", "error", "invalid: not a row: status=None"),
    "answers text instead of numbers": (
        'say(b\'{"result": {"status": "ok", "measurements": [{"quantity": "x", "value": "y"}]}}\\n\')',
        "error",
        "measurements[0].value='y': allowed: a finite number",
    ),
    "dies within a line": ('say(b\'{"result": {"sta\'); os._exit(1)', "error", "ended with exit code 1"),
    "hangs within a line": ('say(b\'{"result": {"sta\'); time.sleep(600)', "timeout", "within 1 s"),
    "breaks its process": ("sys.broken = True; raise RuntimeError('device lost')", "error", "device lost"),
    "works": ("assert not hasattr(sys, 'broken')", "ok", ""),
    "raises an unencodable message": ("raise OSError('\\ud800')", "error", r"OSError: \ud800"),
}


@pytest.mark.lengthy
def test_a_fault_in_a_worker_becomes_a_row_and_the_next_cell_runs(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import dataclasses, os, resource, signal, sys, time, numpy\n"
        "import vocabench.harness.tasks.agreement as task\n"
        "real = task.run\n"
        "def limit():\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "def run(cell, progress):\n"
        "    answers = int(sys.argv[sys.argv.index('--answers') + 1])\n"
        "    say = lambda text: os.write(answers, text)\n"
        "    exec(FAULTS[cell.seed])\n"
        "    return real(cell, progress)\n"
        "task.TASK = dataclasses.replace(task.TASK, run=run)\n"
        f"FAULTS = {[body for body, _, _ in FAULTS.values()]!r}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(pool, "_LONGEST_LINE", 1 << 20)
    (cell,) = oracle_cells(["huffman"])
    cells = {name: dataclasses.replace(cell, seed=number) for number, name in enumerate(FAULTS)}
    hanging = [cells[name] for name, (_, status, _) in FAULTS.items() if status == "timeout"]
    path = tmp_path / "rows.jsonl"
    with Store(path) as store:
        assert len(list(pool.run(hanging, store, deadline=1, progress=quiet))) == len(hanging)
        list(pool.run(cells.values(), store, deadline=120, progress=quiet))
    rows = {row.key: row for row in results_files.rows(path)}
    assert len(rows) == len(FAULTS)
    for name, (_, status, message) in FAULTS.items():
        row = rows[cells[name].key]
        assert row.status == status, (name, row.message)
        assert message in row.message, name


def test_code_that_changes_before_a_cell_is_an_error_row(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "code_fingerprint", lambda: "before")
    monkeypatch.setattr(pool.Worker, "ask", None)
    (cell,) = oracle_cells(["full_softmax"])
    with Store(tmp_path / "rows.jsonl") as store:
        (row,) = pool.run([cell], store, deadline=120, progress=quiet)
    assert row.status == "error"
    assert f"the code here ({provenance.fingerprint()}) differs from that of the run (before)" in row.message


def test_code_that_changes_while_a_cell_is_measured_is_an_error_row(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "from vocabench.harness.run import provenance\nprovenance.fingerprint = lambda: 'changed'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (cell,) = oracle_cells(["full_softmax"])
    with Store(tmp_path / "rows.jsonl") as store:
        (row,) = pool.run([cell], store, deadline=120, progress=quiet)
    assert row.status == "error"
    assert row.measurements == []
    assert "the code here (changed) differs" in row.message


def test_a_worker_that_died_between_requests_is_replaced(tmp_path):
    cells = oracle_cells(["full_softmax", "huffman"])
    rows = []
    with Store(tmp_path / "rows.jsonl") as store:
        for row in pool.run(cells, store, deadline=120, progress=quiet):
            rows.append(row)
            for child in psutil.Process().children():
                if "vocabench.harness.run.worker" not in child.cmdline():
                    continue  # a process of another test, such as a fork server
                child.kill()
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert [row.status for row in rows] == ["ok", "ok"]


def test_a_worker_whose_parent_has_ended_does_not_measure():
    reading, writing = os.pipe()
    (cell,) = oracle_cells(["full_softmax"])
    command = [sys.executable, "-m", "vocabench.harness.run.worker", "--framework", "numpy", "--answers", str(writing)]
    done = subprocess.run(
        [*command, "--parent", "1"],
        input=json.dumps({"cell": cell.to_json()}).encode() + b"\n",
        pass_fds=(writing,),
        env={**os.environ, "PYTHONPATH": str(IMPORT_ROOT)},
        timeout=60,
        check=False,
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        assert (done.returncode, answers.read()) == (1, b"")


def test_an_exception_in_a_task_is_a_row(tmp_path):
    (cell,) = oracle_cells(["full_softmax"])
    broken = [dataclasses.replace(cell, settings={}), dataclasses.replace(cell, method="no_such_method")]
    with Store(tmp_path / "rows.jsonl") as store:
        wrong, refused = pool.run(broken, store, deadline=120, progress=quiet)
    assert wrong.status == "error"
    assert "KeyError" in wrong.message
    assert refused.status == "refused"
    assert "unknown method" in refused.message


def test_a_missing_device_is_refused():
    with pytest.raises(BadInput, match=r"device 'cuda': numpy has none here: allowed: cpu"):
        devices.check(["numpy"], "cuda", every=True)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", [name for name in registry.installed_frameworks() if name != "numpy"])
def test_a_framework_uses_the_given_number_of_threads(framework, monkeypatch):
    for name in pool._THREADS:
        monkeypatch.setenv(name, "2")
    with pool.Worker(framework, threads=1) as worker:
        (message,) = worker.ask({"describe": True}, deadline=120)
    assert message["result"]["describe"]["cpu"]["threads"] == "1"


def test_a_cell_whose_time_is_measured_has_a_process_in_which_none_was_measured_before(monkeypatch, tmp_path):
    """Cells that are only skipped, as hundreds of a suite may be, share a process."""
    statuses = {16: "skipped", 17: "skipped", 18: "ok", 19: "skipped", 20: "refused", 21: "skipped", 22: "ok"}
    cells = [Cell("s", "timing", "torch", "huffman", vocab, 8, 8, settings={"processes": 1}) for vocab in statuses]
    workers: list[list[int]] = []

    class Recorded(pool.Worker):
        def __init__(self, framework, threads=None):
            super().__init__(framework, threads)
            workers.append([])

    def measure(worker, cell, deadline, *, earlier):
        workers[-1].append(cell.vocab)
        yield pool.failed(cell, statuses[cell.vocab], "")

    monkeypatch.setattr(pool, "Worker", Recorded)
    monkeypatch.setattr(pool, "measure", measure)
    with Store(tmp_path / "rows.jsonl") as store:
        assert len(list(pool.run(cells, store, deadline=1, progress=quiet))) == len(cells)
    assert workers == [[16, 17, 18], [19, 20], [21, 22]]


def test_an_idle_process_takes_cells_of_other_frameworks(monkeypatch, tmp_path):
    """Each cell is measured once; the idle process takes the last cells of the other framework."""
    slow = [Cell("check", "agreement", "slow", "full_softmax", vocab, 8, 8) for vocab in range(2, 8)]
    quick = Cell("check", "agreement", "quick", "full_softmax", 2, 8, 8)
    measured: dict[str, list[int]] = {}

    def run(cells, store, *, deadline, progress):
        first = None
        for cell in cells:
            first = first or cell.framework
            measured.setdefault(first, []).append(cell.vocab)
            time.sleep(0.2 if first == "slow" else 0.02)
            yield SimpleNamespace(key=cell.key)

    monkeypatch.setattr(pool, "run", run)
    with Store(tmp_path / "rows.jsonl") as store:
        rows = list(pool.run_side_by_side([*slow, quick], store, deadline=1, progress=quiet))
    assert sorted(row.key for row in rows) == sorted(cell.key for cell in [*slow, quick])
    assert measured["quick"][:3] == [2, 7, 6]
    assert measured["slow"][0] == 2
    assert sorted(measured["quick"][1:] + measured["slow"]) == [cell.vocab for cell in slow]


def test_after_a_failure_other_frameworks_start_no_more_cells(monkeypatch, tmp_path):
    """Such a failure is a full disk."""
    cells = [Cell("check", "agreement", "going", "full_softmax", vocab, 8, 8) for vocab in range(2, 8)]
    failing = Cell("check", "agreement", "failing", "full_softmax", 2, 8, 8)
    measured_cells = []
    started, released, ended = (threading.Event() for _ in range(3))

    def run(cells, store, *, deadline, progress):
        for cell in cells:
            if cell.framework == "failing":
                started.wait(10)
                raise BadInput("no space")
            measured_cells.append(cell)
            started.set()
            released.wait(10)
            yield SimpleNamespace(key=cell.key)
        ended.set()

    monkeypatch.setattr(pool, "run", run)
    with Store(tmp_path / "rows.jsonl") as store, pytest.raises(BadInput, match="no space"):
        list(pool.run_side_by_side([*cells, failing], store, deadline=1, progress=quiet))
    released.set()
    assert ended.wait(10)
    assert len(measured_cells) == 1
