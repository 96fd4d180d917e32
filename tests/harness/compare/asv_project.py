"""Rows, and a repository with asv's configuration, which the tests of asv share."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import ROOT
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Provenance, Ratio, Row

TIMES = [0.011, 0.010, 0.012, 0.010, 0.013, 0.011, 0.010, 0.015, 0.011]
FULL = [0.10, 0.11, 0.12, 0.10, 0.10, 0.11, 0.10, 0.10, 0.11]
RATIO = Ratio(9.0, 8.0, 10.0, baseline_samples=FULL)
LAYER = Measurement("layer_seconds", 0.0111, samples=TIMES, ratio=RATIO)
MACHINE = {"cpu": "A Processor (R)", "cores": 2, "memory_bytes": 2**34, "system": "Linux 6", "python": "3.11.7"}


def row(
    *measurements,
    task="timing",
    method="huffman",
    commit="c" * 40,
    dirty: bool | None = False,
    status="ok",
    machine=MACHINE,
    device_name="x86_64",
    **fields,
):
    vocab = fields.pop("vocab", 100)
    cell = Cell("quick", task, fields.pop("framework", "torch"), method, vocab, 8, 64, **fields)
    return Row(
        cell.key,
        cell,
        status,
        message="no memory" if status == "oom" else "",
        measurements=measurements if status in ("ok", "disagree") else [],
        provenance=Provenance(
            code={"commit": commit, "dirty": dirty},
            machine=machine,
            framework={"torch": "2.13.0", "threads": "2", "device_name": device_name},
        ),
    )


def git(*arguments):
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@localhost", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(message):
    git("commit", "--quiet", "--allow-empty", "--message", message)
    return git("rev-parse", "HEAD")


def asv(*arguments, home, config="asv.conf.json"):
    return subprocess.run(
        [sys.executable, "-m", "asv", "--config", str(config), *arguments],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env={**os.environ, "HOME": str(home)},
    )


def configure(**changes):
    """Write this repository's configuration, with `changes`."""
    content = json.loads((ROOT / "asv.conf.json").read_text()) | changes
    Path("asv.conf.json").write_text(json.dumps(content))
