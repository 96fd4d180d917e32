"""Runs killed at random moments: nothing finished is lost or measured twice, and no worker stays."""

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
    """The same command again and again, each time in a process group of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.mark = f"vocabench-kills-{uuid.uuid4().hex}"
        self.environment = {**os.environ, "PYTHONPATH": str(IMPORT_ROOT), "VOCABENCH_TEST_MARK": self.mark}

    def start(self, name):
        return subprocess.Popen(
            [*COMMAND, "--out", name],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def left(self):
        """The processes of these runs that are alive, the workers in sessions of their own among them."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("VOCABENCH_TEST_MARK") == self.mark:
                    found.append(process)
            except psutil.Error:  # gone, or of another user
                continue
        return found


def results(path):
    """What does not differ from one run to the next: cells, statuses and values."""
    return {
        row["key"]: (row["cell"], row["status"], [(m["quantity"], m["value"]) for m in row["measurements"]])
        for row in results_files.rows(path)
    }


def check_readable(path):
    """Whole lines of a results file, one a cell; a last line may be cut."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    keys = [json.loads(line)["key"] for line in lines]
    assert len(keys) == len(set(keys)), "a finished cell was measured again"
    return lines


@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_kills_at_random_moments_lose_nothing(tmp_path, kills):
    chance = random.Random(kills)
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
            code = process.wait(chance.uniform(0.0, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            done += 1
            found = check_readable(path)
            assert found[: len(lines)] == lines, "a finished row was lost"
            lines = found
        else:
            # It finished before it could be killed, as it does once few cells are left: the next ones begin anew.
            assert code == 0
            assert results(path) == expected
            number += 1
            path, lines = tmp_path / f"{number}.jsonl", []
    assert runner.start(path.name).wait(120) == 0
    assert results(path) == expected
    assert check_readable(path)[: len(lines)] == lines

    ends = time.monotonic() + 10
    while (left := runner.left()) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not left, "a worker outlived its run"
