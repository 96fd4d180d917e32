"""Base classes of the benchmarks: each looks up one figure in rows that the harness measured once for the commit.

The harness of that commit measures its own suite `asv`, with one process per framework.
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
    """Results of one method in one framework, joined over all cells of a task.

    Attributes:
        samples: Samples by the name of the figure.
        failure: Status and message of a cell that failed.
    """

    samples: dict[str, list[float]] = field(default_factory=dict)
    failure: str = ""


Cache = dict[tuple[str, str], Cell]


def measure(task: str) -> Cache:
    """Measure the cells of `task` in the suite, and return the results by framework and method."""
    pool, store, history = map(harness_module, ("run.pool", "run.store", "compare.history"))
    suite = _attribute("Suite", "run.suites", "run.cells").load("asv")
    selection = _attribute("Selection", "run.settings", "run.cells")(tasks=[task])
    run = pool.run if task == "timing" else pool.run_side_by_side
    results: Cache = {}
    with store.Store(Path("rows.jsonl")) as rows:  # asv gives each cache a folder of its own
        cells = suite.cells(selection)
        for row in run(cells, rows, deadline=suite.deadline_seconds, progress=lambda cell, text: None):
            fields = row if isinstance(row, dict) else row.to_json()  # older commits have no type for rows
            cell = results.setdefault((fields["cell"]["framework"], fields["cell"]["method"]), Cell())
            cell.samples |= history.figures(row)
            if fields["status"] not in ("ok", "skipped"):
                cell.failure = f"{fields['status']}: {fields['message']}"
    return results


def harness_module(name: str) -> ModuleType:
    """Import a module of the harness from the commit's checkout, which asv puts first on the path.

    Older commits have `harness.pool` instead of `vocabench.harness.run.pool`. There, an installed `vocabench` must not
    be imported instead.
    """
    checkout = os.environ.get("ASV_PYTHONPATH", "")
    if checkout and not Path(checkout, "vocabench").is_dir():
        return importlib.import_module(f"harness.{name.rpartition('.')[2]}")
    return importlib.import_module(f"vocabench.harness.{name}")


def _attribute(name: str, module: str, older_module: str) -> Any:
    """Return an attribute of `module`, or of `older_module` in a commit that still has it there."""
    try:
        return getattr(harness_module(module), name)
    except (ImportError, AttributeError):
        return getattr(harness_module(older_module), name)


class LookUp:
    """One figure for each framework and method.

    Attributes:
        version: Version of the figure's definition. asv does not compare figures of different versions. Its default, a
            hash of this file, would say nothing about what is measured.
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
            raise NotImplementedError("not measured here")  # asv skips the benchmark

    def look_up(self, cache: Cache, framework: str, method: str) -> dict[str, Any]:
        cell = cache[framework, method]
        if self.figure not in cell.samples:
            raise RuntimeError(cell.failure)
        return {"samples": cell.samples[self.figure], "number": 1}


class Score(LookUp):
    """A figure that is neither a time nor an amount of memory. All stored scores have the same definition."""

    version = "3"
