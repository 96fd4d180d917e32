"""Child process that measures cells: `python -m vocabench.harness.run.worker --framework torch`.

It reads cells as JSON lines from standard input and answers on the file descriptor given by --answers: any number of
{"progress": text} lines for a cell, then one {"result": ...}. Frameworks may print to standard output and error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import traceback
from typing import Any, TextIO

from vocabench.harness import registry
from vocabench.harness.measure import memory
from vocabench.harness.run import provenance
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.processes import join
from vocabench.harness.run.rows import Row, storable
from vocabench.harness.run.settings import check_has_device
from vocabench.harness.tasks.shared.result import Result
from vocabench.impls.errors import BadInput, Unsupported


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m vocabench.harness.run.worker")
    parser.add_argument("--framework", required=True, choices=registry.frameworks())
    parser.add_argument("--answers", type=int, required=True, help="file descriptor that answers are written to")
    parser.add_argument("--parent", type=int, required=True, help="process with which this one ends")
    arguments = parser.parse_args()
    memory.keep_freed()  # before the first thread is started
    _end_with(arguments.parent)
    registry.adapter(arguments.framework).prepare_process()
    with open(arguments.answers, "w", encoding="utf-8") as answers:
        for line in sys.stdin:
            request = json.loads(line)
            answer = _describe(arguments.framework) if "describe" in request else _measure(request, answers)
            _send(answers, {"result": answer})


def _measure(request: dict[str, Any], answers: TextIO) -> dict[str, Any]:
    """Answer a request for a "cell". With the "row" of its earlier processes, measure its times once more."""
    cell = Cell.from_json(request["cell"])
    memory.give_back_freed()  # what earlier cells have left behind
    start = time.perf_counter()
    described = "cpu"  # a device that is missing cannot be described

    def progress(text: str) -> None:
        _send(answers, {"progress": text})

    try:
        task = registry.task(cell.task)
        if cell.method in registry.methods():
            check_has_device(cell.framework, registry.adapter(cell.framework).devices(), cell.device)
        described = cell.device
        if "row" in request:
            row = Row.from_json(request["row"])
            assert task.repeat is not None
            measurements = join(cell, row.measurements, task.repeat(cell, row.measurements, progress))
            result = Result(measurements, dict(row.agreement), dict(row.provenance.data))
        else:
            result = task.run(cell, progress)
        answer = {
            "status": result.status,
            "message": "; ".join(result.agreement.get("disagreements", [])),
            "measurements": storable(result.measurements),
            "agreement": result.agreement,
            "data": result.data,
        }
    except Exception as error:
        answer = {"status": _status_of(error), "message": _one_line(error), "measurements": [], "agreement": {}}
        if not isinstance(error, BadInput):
            traceback.print_exc()
    answer["seconds"] = time.perf_counter() - start
    facts = registry.adapter(cell.framework).describe(described, cell.precision)
    answer["framework"] = {**facts, "freed_memory": memory.allocation()}
    answer["code"] = provenance.fingerprint()  # after every module has been imported
    return answer


def _describe(framework: str) -> dict[str, Any]:
    adapter = registry.adapter(framework)
    devices = adapter.devices()
    return {"devices": devices, "describe": {device: adapter.describe(device) for device in devices}}


def _status_of(error: Exception) -> str:
    if isinstance(error, Unsupported):
        return "skipped"
    if isinstance(error, BadInput):
        return "refused"
    text = f"{type(error).__name__} {error}".lower()
    phrases = ("out of memory", "outofmemory", "resource_exhausted", "resourceexhausted", "can't allocate memory")
    return "oom" if isinstance(error, MemoryError) or any(phrase in text for phrase in phrases) else "error"


def _one_line(error: Exception) -> str:
    text = str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:2000]


def _send(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _end_with(parent: int) -> None:
    """End this process when its parent ends, which may already have happened, to stop measuring and free memory."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
