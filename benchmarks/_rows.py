"""What every benchmark here is: a look-up in the rows that the harness measured once for the commit.

The commit's own harness measures its own suite `asv`, each framework in a process of its own.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

FRAMEWORKS = ["torch", "tensorflow", "jax"]


@dataclass
class Cell:
    """What is known of a framework's method; several cells of one task are one here.

    Attributes:
        samples: Of each figure, by its name.
        failure: What a cell that has no figures says.
    """

    samples: dict[str, list[float]] = field(default_factory=dict)
    failure: str = ""


Cache = dict[tuple[str, str], Cell]


def measure(task: str) -> Cache:
    """The suite's cells of `task`, by framework and method."""
    pool, cells, store, history = map(_module, ("run.pool", "run.cells", "run.store", "compare.history"))
    suite = cells.Suite.load("asv")
    run = pool.run if task == "timing" else pool.run_side_by_side
    found: Cache = {}
    with store.Store(Path("rows.jsonl")) as rows:  # asv gives each cache a folder of its own
        chosen = suite.cells(cells.Selection(tasks=[task]))
        for row in run(chosen, rows, deadline=suite.deadline_seconds, progress=lambda cell, text: None):
            cell = found.setdefault((row["cell"]["framework"], row["cell"]["method"]), Cell())
            cell.samples |= history.figures(row)
            if row["status"] not in ("ok", "skipped"):
                cell.failure = f"{row['status']}: {row['message']}"
    return found


def _module(name: str) -> ModuleType:
    """A module of the harness in the commit's own checkout, which asv puts first on the path.

    Commits from before `vocabench` was the only import name have `harness.pool` instead of
    `vocabench.harness.run.pool`. The installed `vocabench` must not answer for them.
    """
    checkout = os.environ.get("ASV_PYTHONPATH", "")
    if checkout and not Path(checkout, "vocabench").is_dir():
        return importlib.import_module(f"harness.{name.rpartition('.')[2]}")
    return importlib.import_module(f"vocabench.harness.{name}")


class LookUp:
    """One figure over framework and method.

    Attributes:
        version: Of the figure's definition: asv compares no figures of two. It would otherwise hash these files, which
            say nothing about what is measured.
    """

    figure: str
    version: str
    unit = "1"
    timeout = 1800
    params = (FRAMEWORKS, ["full_softmax", "sohsm", "huffman"])
    param_names = ("framework", "method")

    def setup(self, cache: Cache, framework: str, method: str) -> None:
        cell = cache.get((framework, method), Cell())
        if self.figure not in cell.samples and not cell.failure:
            raise NotImplementedError("not measured here")  # asv's way to skip

    def look_up(self, cache: Cache, framework: str, method: str) -> dict[str, Any]:
        cell = cache[framework, method]
        if self.figure not in cell.samples:
            raise RuntimeError(cell.failure)
        return {"samples": cell.samples[self.figure], "number": 1}


class Score(LookUp):
    """A figure in which there is no time and no memory. Its definition has not changed since scores are kept."""

    version = "3"
