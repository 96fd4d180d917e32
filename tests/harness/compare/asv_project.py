"""What tests of asv have in common: rows, and a repository with a configuration of its."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import ROOT
from vocabench.harness.quantities import Measurement
from vocabench.harness.run.cells import Cell

TIMES = [0.011, 0.010, 0.012, 0.010, 0.013, 0.011, 0.010, 0.015, 0.011]
FULL = [0.10, 0.11, 0.12, 0.10, 0.10, 0.11, 0.10, 0.10, 0.11]
RATIO = {"value": 9.0, "low": 8.0, "high": 10.0, "samples": [], "baseline_samples": FULL}
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
    **fields,
):
    vocab = fields.pop("vocab", 100)
    cell = Cell("quick", task, fields.pop("framework", "torch"), method, vocab, 8, 64, **fields)
    return {
        "schema": 1,
        "key": cell.key,
        "cell": cell.to_json(),
        "status": status,
        "message": "no memory" if status == "oom" else "",
        "measurements": [each.to_json() for each in measurements] if status in ("ok", "disagree") else [],
        "agreement": {},
        "provenance": {
            "code": {"commit": commit, "dirty": dirty},
            "machine": machine,
            "framework": {"torch": "2.13.0", "threads": "2", "device_name": "x86_64"},
        },
    }


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
    """The repository's own configuration, with `changes`."""
    content = json.loads((ROOT / "asv.conf.json").read_text()) | changes
    Path("asv.conf.json").write_text(json.dumps(content))
