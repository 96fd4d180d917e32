"""Measurement in a process of its own, which has the memory of no earlier measurement."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

from vocabench.harness import registry
from vocabench.harness.measure.memory import keep_freed

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def in_new_process(
    framework: str, function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Call a function of a module in a new process of a framework, prepared like a worker of a run."""
    with ProcessPoolExecutor(1, get_context("spawn"), _prepare, (framework,)) as process:
        return process.submit(function, *args, **kwargs).result()


def _prepare(framework: str) -> None:
    keep_freed()  # before the first thread is started
    registry.adapter(framework).prepare_process()
