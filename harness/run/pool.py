"""Execution of cells in child processes, one per framework, so that a crash or a hang becomes a row."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import queue
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO

from vocabench.harness import registry
from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.harness.run import memory_kills, processes, provenance
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import SCHEMA, Provenance, Row, storable
from vocabench.harness.run.store import Store
from vocabench.impls.errors import BadInput
from vocabench.impls.scratch import ScratchFolder

Progress = Callable[[Cell, str], None]
RunCells = Callable[..., Iterator[Row]]

# Number of threads of each framework's libraries and compilers, which read it when they load.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC")

# Caches of code that PyTorch and Triton compile. Each worker has its own, so that `compile_seconds` measures compiling
# and not loading what another worker compiled.
_COMPILER_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

# Whatever else a worker and its compilers write is removed with its caches, even if the worker is killed.
_TEMPORARY = "TMPDIR"

# glibc reads it when a process starts. With more arenas, large arrays of threads are mapped and zeroed anew each time.
_ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}

_LONGEST_LINE = 1 << 28  # bytes of an answer: a worker that writes endlessly must not exhaust memory
_LAST_OUTPUT = 1 << 16  # bytes of a dead worker's output that are searched for its last line


class WorkerDied(Exception):
    """The child process ended without an answer.

    Attributes:
        signal: Number of the signal that ended it, or 0.
    """

    signal = 0


class Worker:
    """One child process of one framework, started on the first request and killed with its whole process group.

    Args:
        threads: Number of threads that the framework may use; None leaves the choice to it.
    """

    def __init__(self, framework: str, threads: int | None = None) -> None:
        self.framework = framework
        self.threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: BinaryIO | None = None
        self._scratch: ScratchFolder | None = None
        self._answers = -1
        self._buffer = bytearray()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def ask(self, request: dict[str, Any], *, deadline: float) -> Iterator[dict[str, Any]]:
        """Yield the child's messages: any number of {"progress": text}, then one {"result": ...}.

        Raises:
            TimeoutError: There was no answer within `deadline` seconds; the child is killed.
            WorkerDied: The child ended. The message says how, with the last line of its output.
        """
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # it ended between two requests, so this request is not the cause
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        ends = time.monotonic() + deadline
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._died(ends) from error
        while True:
            for message in self._messages(ends):
                yield message
                if "result" in message:
                    return

    def kill(self) -> None:
        if self._process is None:
            self._remove_scratch()  # of a process that could not be started
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin:
            with contextlib.suppress(OSError):  # unread input
                self._process.stdin.close()
        os.close(self._answers)
        if self._errors:
            self._errors.close()
        self._remove_scratch()
        self._process, self._buffer = None, bytearray()

    def _remove_scratch(self) -> None:
        if self._scratch:
            self._scratch.remove()
            self._scratch = None
        _live.discard(self)

    def _start(self) -> None:
        self._answers, child_end = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        # Without -P, a checkout of another version in the current folder would take precedence over this one.
        command = [sys.executable, "-P", "-m", "vocabench.harness.run.worker", "--framework", self.framework]
        command += ["--answers", str(child_end), "--parent", str(os.getpid())]
        path = os.pathsep.join(filter(None, [str(IMPORT_ROOT), os.environ.get("PYTHONPATH")]))
        threads = dict.fromkeys(_THREADS, str(self.threads)) if self.threads else {}
        self._scratch = ScratchFolder("compiled")
        folders = {name: str(self._scratch.path / name.lower()) for name in (*_COMPILER_CACHES, _TEMPORARY)}
        os.mkdir(folders[_TEMPORARY])
        _live.add(self)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=subprocess.STDOUT,
            pass_fds=(child_end, self._scratch.lock),
            start_new_session=True,
            env={**os.environ, **folders, **threads, **_ONE_ARENA, "PYTHONPATH": path},
        )
        os.close(child_end)

    def _messages(self, ends: float) -> Iterator[dict[str, Any]]:
        """Wait for output of the child, and yield the messages received."""
        remaining = ends - time.monotonic()
        # A child that keeps writing must reach its deadline too.
        if remaining <= 0 or not select.select([self._answers], [], [], remaining)[0]:
            self.kill()
            raise TimeoutError
        chunk = os.read(self._answers, 1 << 20)
        if not chunk:
            raise self._died(ends)
        self._buffer += chunk
        if b"\n" not in chunk and len(self._buffer) <= _LONGEST_LINE:
            return
        *lines, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > _LONGEST_LINE:
            lines.append(self._buffer)
        for line in lines:
            message = _message(line)
            if message is None:
                self.kill()
                raise WorkerDied(f"the worker wrote an invalid answer: {bytes(line[:200])!r}")
            yield message

    def _died(self, ends: float) -> WorkerDied:
        """Describe the end of a child that closed its pipe; it may still be running."""
        assert self._process is not None
        assert self._errors is not None
        try:
            code = self._process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError from None
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _LAST_OUTPUT))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        end = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.kill()
        died = WorkerDied(f"the worker was {end}" + (f": {lines[-1]}" if lines else ""))
        died.signal = max(0, -code)
        return died


_live: set[Worker] = set()  # workers whose processes run


@atexit.register
def _kill_live() -> None:
    """Kill the workers of threads that end with this process, which would leave their folders behind."""
    for worker in list(_live):
        worker.kill()


def _message(line: bytearray) -> dict[str, Any] | None:
    """Parse {"progress": text} or {"result": object}; return None for anything else."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(message, dict) and len(message) == 1:
        for name, kind in (("progress", str), ("result", dict)):
            if isinstance(message.get(name), kind):
                return message
    return None


def run(cells: Iterable[Cell], store: Store, *, deadline: float, progress: Progress) -> Iterator[Row]:
    """Measure the cells that `store` does not contain yet, and yield each row once it is on disk.

    A cell whose times are to be measured in several processes has a row after each of them, which replaces the one
    before. All cells are measured once before any is measured again, in another order each time, so that a disturbance
    of some minutes does not affect all processes of a cell.
    """
    unfinished: dict[str, Row] = {}

    def first_process() -> Iterator[tuple[Cell, None]]:
        for cell in cells:
            if cell.key in store.unfinished:
                unfinished[cell.key] = store.unfinished[cell.key]
            elif cell.key not in store:
                yield cell, None

    waiting: Iterable[tuple[Cell, Row | None]] = first_process()
    while True:
        for row in _run_once(waiting, store, deadline, progress):
            if not processes.is_complete(row) and not row.message:
                unfinished[row.key] = row
            yield row
        if not unfinished:
            return
        waiting = [(row.cell, row) for row in _in_random_order(unfinished.values())]
        unfinished.clear()


def _run_once(
    waiting: Iterable[tuple[Cell, Row | None]], store: Store, deadline: float, progress: Progress
) -> Iterator[Row]:
    """Measure each cell in one process, given its row from earlier processes."""
    worker: Worker | None = None
    has_measured = False  # whether the worker has, so that it holds memory and compiled code
    try:
        for cell, earlier in waiting:
            needs_fresh = has_measured and earlier is None and _needs_fresh_process(cell)
            if worker is None or worker.framework != cell.framework or needs_fresh:
                if worker:
                    worker.kill()
                worker, has_measured = Worker(cell.framework), False
            progress(cell, "")
            for message in measure(worker, cell, deadline, earlier=earlier):
                if isinstance(message, str):
                    progress(cell, message)
                else:
                    store.append(message)
                    has_measured |= message.status != "skipped"
                    if message.status in ("error", "oom"):
                        worker.kill()  # once a device has failed, any later call of the process may fail
                    yield message
    finally:
        if worker:
            worker.kill()


def _in_random_order(rows: Iterable[Row]) -> list[Row]:
    """Shuffle the frameworks, and the rows of each, so that every framework needs one process."""
    by_framework: dict[str, list[Row]] = {}
    for row in rows:
        by_framework.setdefault(row.cell.framework, []).append(row)
    shuffle = random.SystemRandom().shuffle
    parts = list(by_framework.values())
    shuffle(parts)
    for part in parts:
        shuffle(part)
    return [row for part in parts for row in part]


def run_side_by_side(cells: Iterable[Cell], store: Store, *, deadline: float, progress: Progress) -> Iterator[Row]:
    """Measure cells as `run` does, with one child process per framework at the same time.

    This is for cells that do not measure time. A process without cells of its framework takes over the last cells of
    the framework that has most left.
    """
    waiting: dict[str, deque[Cell]] = {}
    for cell in cells:
        waiting.setdefault(cell.framework, deque()).append(cell)
    finished: queue.SimpleQueue[Row | BaseException | None] = queue.SimpleQueue()
    taking = threading.Lock()

    def take(framework: str) -> Iterator[Cell]:
        while True:
            with taking:
                own_cells = waiting[framework]
                longest = max(waiting.values(), key=len)
                if not longest:
                    return
                # Taking the last cell keeps the two processes on different methods for as long as possible.
                cell = own_cells.popleft() if own_cells else longest.pop()
            yield cell

    def work(framework: str) -> None:
        try:
            for row in run(take(framework), store, deadline=deadline, progress=progress):
                finished.put(row)
        except BaseException as error:  # raised again in the caller's thread
            finished.put(error)
        finished.put(None)

    for framework in waiting:
        threading.Thread(target=work, args=(framework,), daemon=True).start()
    running = len(waiting)
    try:
        while running:
            item = finished.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        with taking:  # after a failure, the other processes finish their current cell only
            for cells_left in waiting.values():
                cells_left.clear()


def _needs_fresh_process(cell: Cell) -> bool:
    """Whether the task would measure what an earlier cell left behind, such as memory kept by the framework."""
    return cell.task in registry.tasks() and registry.task(cell.task).fresh_process


def measure(
    worker: Worker, cell: Cell, deadline: float, *, code: str | None = None, earlier: Row | None = None
) -> Iterator[str | Row]:
    """Yield lines of progress, then the cell's row. A failure of the child becomes the row's status.

    Args:
        code: Fingerprint of the code that the run started with; None for that of this process.
        earlier: The row from earlier processes, to which this process adds its times. It stays as it is, with a
            message, if this process fails.
    """
    for message in _measure(worker, cell, deadline, code, earlier):
        if isinstance(message, Row) and earlier is not None and message.status != "ok":
            worker.kill()
            count = f"{processes.count(earlier)} of {processes.wanted(cell)} processes"
            message = dataclasses.replace(earlier, message=f"{count}: then {message.status}: {message.message}")
        yield message


def _measure(worker: Worker, cell: Cell, deadline: float, code: str | None, earlier: Row | None) -> Iterator[str | Row]:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    code = code or provenance.code_fingerprint()
    kills = memory_kills.count()
    # The child imports modules until it answers, so its code is checked before and after.
    if (here := provenance.fingerprint()) != code:
        yield _of_other_code(cell, here, code, started)
        return
    try:
        registry.check_framework(cell.framework)
    except BadInput as error:
        yield failed(cell, "skipped", str(error), started)
        return
    request = {"cell": cell.to_json()} | ({} if earlier is None else {"row": earlier.to_json()})
    try:
        for message in worker.ask(request, deadline=deadline):
            if "progress" in message:
                yield message["progress"]
            else:
                yield _answered(worker, cell, message["result"], started, code)
    except TimeoutError:
        yield failed(cell, "timeout", f"no result within {deadline:g} s", started)
    except WorkerDied as error:
        status, message = "error", str(error)
        if error.signal == signal.SIGKILL:  # which is how the kernel ends a process when memory runs out
            status, reason = memory_kills.explain(kills, memory_kills.count())
            message = f"{message}; {reason}"
        yield failed(cell, status, message, started)


def _answered(worker: Worker, cell: Cell, answer: dict[str, Any], started: str, code: str) -> Row:
    """Return the row of a worker's answer. A worker whose answer is invalid or of other code is not used again."""
    try:
        row = _row(cell, answer, started)
    except BadInput as error:
        worker.kill()
        return failed(cell, "error", f"the worker's answer is invalid: {error}", started)
    if answer.get("code") != code:
        worker.kill()
        return _of_other_code(cell, answer.get("code"), code, started)
    return row


def _of_other_code(cell: Cell, here: object, code: str, started: str) -> Row:
    message = f"the code here ({here}) differs from that of the run ({code}): allowed: the same code, on every node"
    return failed(cell, "error", message, started)


def failed(cell: Cell, status: str, message: str, started: str = "") -> Row:
    """Return the row of a cell without an answer."""
    origin = Provenance(**provenance.of_run(), started=started)
    return Row(cell.key, cell, status, storable(message), provenance=origin)


def _row(cell: Cell, answer: dict[str, Any], started: str) -> Row:
    """Return the row of a worker's answer, or raise `BadInput` if it is invalid."""
    origin = {
        **provenance.of_run(),
        "framework": answer.get("framework", {}),
        "data": answer.get("data", {}),
        "started": started,
        "seconds": answer.get("seconds"),
    }
    fields = {
        "schema": SCHEMA,
        "key": cell.key,
        "cell": cell.to_json(),
        "status": answer.get("status"),
        "message": answer.get("message", ""),
        "measurements": answer.get("measurements"),
        "agreement": answer.get("agreement", {}),
        "provenance": origin,
    }
    return Row.from_json(storable(fields))
