"""Runs killed at random moments: finished cells are neither lost nor measured twice, and no worker remains."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.harness.run import results_files

METHODS = ["full_softmax", "sohsm", "huffman", "d_softmax", "class_hsm", "adaptive_softmax"]
COMMAND = [sys.executable, "-m", "vocabench", "run", "quick", "-t", "agreement", "-f", "numpy"]
COMMAND += ["--precision", "float64", "-s", "training=false", *(f"-m{method}" for method in METHODS)]


class Runs:
    """Repeated runs of one command, each in its own process group."""

    def __init__(self, folder):
        self.folder = folder
        self.mark = f"vocabench-kills-{uuid.uuid4().hex}"
        self.environment = {**os.environ, "PYTHONPATH": str(IMPORT_ROOT), "VOCABENCH_TEST_MARK": self.mark}

    def start(self, name, **environment):
        return subprocess.Popen(
            [*COMMAND, "--out", name],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def processes(self):
        """Return the live processes of these runs, including workers, which have their own sessions."""
        processes = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("VOCABENCH_TEST_MARK") == self.mark:
                    processes.append(process)
            except psutil.Error:  # it has ended, or belongs to another user
                continue
        return processes


def results(path):
    """Return what is the same in every run: cells, statuses and values."""
    return {
        row.key: (row.cell, row.status, [(m.quantity, m.value) for m in row.measurements])
        for row in results_files.rows(path)
    }


def complete_lines(path):
    """Return the complete lines of a results file, which must be of different cells."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    keys = [json.loads(line)["key"] for line in lines]
    assert len(keys) == len(set(keys)), "a finished cell was measured again"
    return lines


@pytest.mark.lengthy
@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_kills_at_random_moments_lose_nothing(tmp_path, kills):
    rng = random.Random(kills)
    runner = Runs(tmp_path)
    started = time.monotonic()
    assert runner.start("unkilled.jsonl").wait(120) == 0
    seconds = time.monotonic() - started
    expected = results(tmp_path / "unkilled.jsonl")
    assert len(expected) == len(METHODS)

    done, number, lines = 0, 0, []
    path = tmp_path / "0.jsonl"
    while done < kills:
        process = runner.start(path.name)
        try:
            code = process.wait(rng.uniform(0.0, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            done += 1
            lines_now = complete_lines(path)
            assert lines_now[: len(lines)] == lines, "a finished row was lost"
            lines = lines_now
        else:
            # Once few cells are left, a run may finish before it is killed. The next runs start with a new file.
            assert code == 0
            assert results(path) == expected
            number += 1
            path, lines = tmp_path / f"{number}.jsonl", []
    assert runner.start(path.name).wait(120) == 0
    assert results(path) == expected
    assert complete_lines(path)[: len(lines)] == lines

    ends = time.monotonic() + 10
    while (remaining := runner.processes()) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not remaining, "a worker outlived its run"


def wait_for(found, seconds=60):
    ends = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return value


def test_a_run_that_is_ended_or_killed_leaves_nothing_in_the_temporary_folder(tmp_path):
    runner, temporary = Runs(tmp_path), tmp_path / "temporary"
    temporary.mkdir()

    def started(name):
        process = runner.start(name, TMPDIR=str(temporary))
        wait_for(lambda: list(temporary.glob("vocabench-compiled-*")))
        return process

    process = started("ended.jsonl")
    process.terminate()
    assert process.wait(60) == 143
    assert list(temporary.iterdir()) == []

    killed = started("killed.jsonl")
    killed.kill()
    killed.wait()
    (left,) = temporary.iterdir()
    wait_for(lambda: not runner.processes())
    alive = runner.start("next.jsonl", TMPDIR=str(temporary))
    wait_for(lambda: not left.exists())
    assert alive.wait(120) == 0
    assert list(temporary.iterdir()) == []
