"""The history of this repository's speed, memory and agreement: `asv run`, `asv continuous HEAD~1 HEAD`.

The harness measures the suite `asv` once a commit (`setup_cache`), each framework in a process of its own; what asv
sees are look-ups of the samples. asv takes lower as better, which holds for every quantity here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

Samples = dict[str, Any]
Cache = dict[tuple[str, str, str], Samples]

_FRAMEWORKS = ["torch", "tensorflow", "jax"]
_METHODS = ["full_softmax", "sohsm", "huffman"]
_TIMEOUT = 1800


def setup_cache() -> Cache:
    """Every quantity of the suite `asv`, by (quantity, framework, method)."""
    from harness import pool
    from harness.cells import Selection, Suite
    from harness.store import Store, read

    suite = Suite.load("asv")
    path = Path("rows.jsonl")  # asv gives each commit's cache a folder of its own
    with Store(path) as store:
        for _row in pool.run(suite.cells(Selection()), store, deadline=suite.deadline_seconds, progress=_silent):
            pass
    found: Cache = {}
    for row in read(path):
        for measurement in row["measurements"]:
            key = (measurement["quantity"], row["cell"]["framework"], row["cell"]["method"])
            found[key] = {"samples": measurement["samples"] or [measurement["value"]], "number": 1}
    return found


def _silent(cell: object, text: str) -> None:
    """asv shows its own progress."""


class _Tracked:
    """One quantity over framework and method. `version` is fixed: asv would otherwise hash this file alone."""

    quantity: str
    unit: str
    timeout = _TIMEOUT
    version = "1"
    params = (_FRAMEWORKS, _METHODS)
    param_names = ("framework", "method")

    def setup(self, cache: Cache, framework: str, method: str) -> None:
        if (self.quantity, framework, method) not in cache:
            raise NotImplementedError("not measured here")  # asv's way to skip

    def track(self, cache: Cache, framework: str, method: str) -> Samples:
        return cache[(self.quantity, framework, method)]


class ForwardBackward(_Tracked):
    quantity, unit = "layer_seconds", "seconds"
    track_layer_seconds = _Tracked.track


class OptimizerStep(_Tracked):
    quantity, unit = "layer_step_seconds", "seconds"
    track_layer_step_seconds = _Tracked.track


class TopK(_Tracked):
    quantity, unit = "topk_seconds", "seconds"
    track_topk_seconds = _Tracked.track


class Memory(_Tracked):
    quantity, unit = "peak_bytes", "bytes"
    track_peak_bytes = _Tracked.track


class Agreement(_Tracked):
    quantity, unit = "agreement_error", "tolerance"
    track_agreement_error = _Tracked.track
