"""Cells in child processes: results, crashes and time-outs become rows, and a killed run goes on where it was."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from vocabench.harness import registry
from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.harness.run import pool, provenance, results_files
from vocabench.harness.run.cells import Cell, Selection, Suite
from vocabench.harness.run.store import Store, read
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
    assert [r["key"] for r in read(path)] == [c.key for c in cells] == [first["key"], second["key"]]
    assert first["status"] == "ok", first["message"]
    assert first["agreement"]["verdict"] == "agree"
    assert first["provenance"]["code"]["fingerprint"]
    assert first["provenance"]["framework"]["numpy"]
    assert first["provenance"]["framework"]["freed_memory"]


def test_a_checkout_where_the_user_stands_is_not_measured(tmp_path, monkeypatch):
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("raise SystemExit('another version')")
    monkeypatch.chdir(tmp_path)
    with Store(tmp_path / "rows.jsonl") as store:
        (row,) = pool.run(oracle_cells(["full_softmax"]), store, deadline=120, progress=quiet)
    assert row["status"] == "ok", row["message"]


def test_a_cell_past_its_deadline_is_a_row_and_the_next_cell_runs(tmp_path):
    cells = oracle_cells(["full_softmax", "huffman"])
    deadlines = iter([0.05, 120.0])
    with Store(tmp_path / "rows.jsonl") as store:
        rows = [row for cell in cells for row in pool.run([cell], store, deadline=next(deadlines), progress=quiet)]
    assert [row["status"] for row in rows] == ["timeout", "ok"]
    assert rows[0]["message"] == "no result within 0.05 s"


# What a worker does in place of the cell's work, and the row that comes of it. `say` writes to the answers' pipe.
FAULTS = {
    "hangs": ("time.sleep(600)", "timeout", "no result within 1 s"),
    "hangs and chatters": ("while True: progress('busy')", "timeout", "no result within 1 s"),
    "closes the pipe and hangs": ("os.close(answers); time.sleep(600)", "timeout", "no result within 1 s"),
    "crashes": ("os.kill(os.getpid(), signal.SIGSEGV)", "error", "the worker was killed by SIGSEGV"),
    "aborts": ("print('assertion failed', flush=True); os.abort()", "error", "killed by SIGABRT: assertion failed"),
    "exits": ("os._exit(3)", "error", "the worker was ended with exit code 3"),
    "exits as if all were well": ("os._exit(0)", "error", "the worker was ended with exit code 0"),
    "leaves": ("sys.exit('no more')", "error", "the worker was ended with exit code 1: no more"),
    "is killed by the kernel": ("os.kill(os.getpid(), signal.SIGKILL)", "oom", "killed by SIGKILL"),
    "asks for too much": ("limit(); numpy.ones(1 << 40)", "oom", "MemoryError: Unable to allocate 8.00 TiB"),
    "fills the memory": ("limit(); held = [bytearray(1 << 20) for _ in range(1 << 14)]", "oom", "MemoryError"),
    "writes noise": ("say(b'\\x00\\xff\\n' * 9)", "error", r"what is no answer: b'\x00\xff'"),
    "writes no object": ("say(b'3\\n')", "error", "what is no answer: b'3'"),
    "writes another object": ("say(b'{}\\n')", "error", "what is no answer: b'{}'"),
    "nests without end": ("say(b'[' * 100_000 + b'\\n')", "error", "what is no answer: b'[[["),
    "writes without end": ("while True: say(b'x' * 4096)", "error", "what is no answer: b'xxx"),
    "answers nothing": ("say(b'{\"result\": {}}\\n')", "error", "another form: no row: status=None"),
    "answers words for numbers": (
        'say(b\'{"result": {"status": "ok", "measurements": [{"quantity": "x", "value": "y"}]}}\\n\')',
        "error",
        "measurements[0].value='y': allowed: a finite number",
    ),
    "dies in the middle of a line": ('say(b\'{"result": {"sta\'); os._exit(1)', "error", "ended with exit code 1"),
    "stops in the middle of a line": ('say(b\'{"result": {"sta\'); time.sleep(600)', "timeout", "within 1 s"),
    "breaks its process": ("sys.broken = True; raise RuntimeError('device lost')", "error", "device lost"),
    "works": ("assert not hasattr(sys, 'broken')", "ok", ""),
    "raises what no text can hold": ("raise OSError('\\ud800')", "error", r"OSError: \ud800"),
}


def test_a_fault_in_a_worker_is_its_row_and_the_next_cell_runs(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, resource, signal, sys, time, numpy\n"
        "import vocabench.harness.tasks.agreement as task\n"
        "real = task.run\n"
        "def limit():\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "def run(cell, progress):\n"
        "    answers = int(sys.argv[sys.argv.index('--answers') + 1])\n"
        "    say = lambda text: os.write(answers, text)\n"
        "    exec(FAULTS[cell.seed])\n"
        "    return real(cell, progress)\n"
        "task.run = run\n"
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
    rows = {row["key"]: row for row in results_files.rows(path)}
    assert len(rows) == len(FAULTS)
    for name, (_, status, message) in FAULTS.items():
        row = rows[cells[name].key]
        assert row["status"] == status, (name, row["message"])
        assert message in row["message"], name


def test_code_that_changes_before_a_cell_is_an_error_row(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "code_fingerprint", lambda: "before")
    monkeypatch.setattr(pool.Worker, "ask", None)
    (cell,) = oracle_cells(["full_softmax"])
    with Store(tmp_path / "rows.jsonl") as store:
        (row,) = pool.run([cell], store, deadline=120, progress=quiet)
    assert row["status"] == "error"
    assert f"other code is here ({provenance.fingerprint()}) than the run began with (before)" in row["message"]


def test_code_that_changes_while_a_cell_is_measured_is_an_error_row(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "from harness import provenance\nprovenance.fingerprint = lambda: 'changed'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (cell,) = oracle_cells(["full_softmax"])
    with Store(tmp_path / "rows.jsonl") as store:
        (row,) = pool.run([cell], store, deadline=120, progress=quiet)
    assert row["status"] == "error"
    assert row["measurements"] == []
    assert "other code is here (changed)" in row["message"]


def test_a_worker_that_died_while_nobody_asked_is_replaced(tmp_path):
    cells = oracle_cells(["full_softmax", "huffman"])
    rows = []
    with Store(tmp_path / "rows.jsonl") as store:
        for row in pool.run(cells, store, deadline=120, progress=quiet):
            rows.append(row)
            for child in psutil.Process().children():
                if "vocabench.harness.run.worker" not in child.cmdline():
                    continue  # of another test, such as what multiprocessing keeps
                child.kill()
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert [row["status"] for row in rows] == ["ok", "ok"]


def test_a_worker_whose_parent_is_gone_before_it_looks_ends_without_measuring():
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
    assert wrong["status"] == "error"
    assert "KeyError" in wrong["message"]
    assert refused["status"] == "refused"
    assert "unknown method" in refused["message"]


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


def test_where_one_framework_fails_the_others_begin_no_cell(monkeypatch, tmp_path):
    """As where the disk is full."""
    cells = [Cell("check", "agreement", "going", "full_softmax", vocab, 8, 8) for vocab in range(2, 8)]
    failing = Cell("check", "agreement", "failing", "full_softmax", 2, 8, 8)
    begun = []
    going, told, ended = (threading.Event() for _ in range(3))

    def run(cells, store, *, deadline, progress):
        for cell in cells:
            if cell.framework == "failing":
                going.wait(10)
                raise BadInput("no space")
            begun.append(cell)
            going.set()
            told.wait(10)
            yield {"key": cell.key}
        ended.set()

    monkeypatch.setattr(pool, "run", run)
    with Store(tmp_path / "rows.jsonl") as store, pytest.raises(BadInput, match="no space"):
        list(pool.run_side_by_side([*cells, failing], store, deadline=1, progress=quiet))
    told.set()
    assert ended.wait(10)
    assert len(begun) == 1
