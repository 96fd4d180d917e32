"""Measurement by several processes that make the same calls, such as the ranks of a process group."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from vocabench.harness import registry
from vocabench.harness.measure.memory import keep_freed
from vocabench.harness.measure.timing import Work, call_seconds
from vocabench.impls.errors import BadInput

Report = Callable[[str], None]


class Lockstep:
    """A clock by which a call takes as long as in the slowest process, so that all processes decide alike.

    Args:
        highest: Returns the highest value of all processes, once all have called it. It also makes them start the next
            call together.
    """

    def __init__(self, highest: Callable[[float], float]) -> None:
        self._highest, self._now = highest, 0.0

    def now(self) -> float:
        return self._now

    def call(self, work: Work) -> float:
        seconds = self._highest(call_seconds(work))
        self._now += seconds
        return seconds

    def seconds(self, works: Sequence[Work]) -> list[float]:
        return [self.call(work) for work in works]


def in_processes(
    framework: str,
    environments: Sequence[Mapping[str, str]],
    function: Callable[..., Any],
    *arguments: Any,
    progress: Report,
) -> Any:
    """Call a function of a module in several new processes of a framework, and return what the first one returns.

    The function gets the number of its process, an empty folder that all of them share, a function that reports
    progress, and `arguments`. When one process fails, the others are ended.

    Args:
        environments: Environment variables of each process.

    Raises:
        BadInput: A process raised it.
        RuntimeError: A process raised another error or ended; its message is one line.
    """
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        started: dict[Connection, BaseProcess] = {}
        try:
            for rank, environment in enumerate(environments):
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_run, args=(theirs, framework, function, rank, folder, arguments), daemon=True
                )
                with _variables(environment):
                    process.start()
                theirs.close()
                started[ours] = process
            return _result(started, progress)
        finally:
            for connection, process in started.items():
                process.kill()
                process.join()
                connection.close()


def _result(started: Mapping[Connection, BaseProcess], progress: Report) -> Any:
    """Wait for all processes, and return the result of the first one."""
    ranks, results = list(started), dict[int, Any]()
    while len(results) < len(ranks):
        for connection in wait([ours for rank, ours in enumerate(ranks) if rank not in results]):
            assert isinstance(connection, Connection)
            rank = ranks.index(connection)
            try:
                kind, content = connection.recv()
            except EOFError:
                process = started[connection]
                process.join()
                raise RuntimeError(f"process {rank} of {len(ranks)} ended with exit code {process.exitcode}") from None
            if kind == "failure":
                raise content
            if kind == "progress":
                progress(content)
            else:
                results[rank] = content
    return results[0]


def _run(
    connection: Connection,
    framework: str,
    function: Callable[..., Any],
    rank: int,
    folder: str,
    arguments: Sequence[Any],
) -> None:
    keep_freed()  # before the first thread is started
    registry.adapter(framework).prepare_process()

    def report(text: str) -> None:
        if rank == 0:
            connection.send(("progress", text))

    try:
        result = function(rank, folder, report, *arguments)
    except BadInput as error:
        connection.send(("failure", error))
    except Exception as error:
        line = " ".join(str(error).split())
        connection.send(("failure", RuntimeError(f"process {rank}: {type(error).__name__}: {line}")))
    else:
        connection.send(("result", result if rank == 0 else None))


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
