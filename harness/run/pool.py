"""Runs cells in child processes, one a framework, so that a crash, a hang or a lack of memory becomes a row."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from vocabench.harness import registry
from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.harness.run import provenance, row
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.store import Row, Store, storable
from vocabench.impls.errors import BadInput

Progress = Callable[[Cell, str], None]
RunCells = Callable[..., Iterator[Row]]

# How each framework's libraries and compilers are told how many threads to start. They read it when they load.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC")

# Where PyTorch and Triton keep what they compile. A worker has folders of its own, so that `compile_seconds` is of
# compiling, and not of finding what another has compiled.
_COMPILED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

# glibc reads it as a process begins. Told later, it lets threads keep what they have for themselves: an arena, in which
# there is no room for anything large, so that an array of theirs is cleared by the system each time.
_ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}

_LONGEST_LINE = 1 << 28  # bytes of an answer: a worker that writes without end must not fill the memory
_LAST_WORDS = 1 << 16  # bytes of what a worker printed that are read once it has died
_START_DEADLINE = 300.0  # seconds for a framework to import and say what it is


class WorkerDied(Exception):
    """The child ended without an answer."""


class Worker:
    """One child process of one framework. Started when first asked, killed with its whole process group.

    Attributes:
        threads: That the framework may use; None leaves the choice to it.
    """

    def __init__(self, framework: str, threads: int | None = None) -> None:
        self.framework = framework
        self.threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: BinaryIO | None = None
        self._compiled = Path(tempfile.gettempdir(), f"vocabench-compiled-{uuid.uuid4().hex}")  # made by who compiles
        self._answers = -1
        self._buffer = bytearray()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def ask(self, request: dict[str, Any], *, deadline: float) -> Iterator[dict[str, Any]]:
        """What the child says: any number of {"progress": text}, then one {"result": ...}.

        Raises:
            TimeoutError: No answer within `deadline` seconds; the child is killed.
            WorkerDied: The child ended; says how, with the last line of what it printed.
        """
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # it ended while nobody asked: no fault of what is asked now
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
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin:
            with contextlib.suppress(OSError):  # what it has not read
                self._process.stdin.close()
        os.close(self._answers)
        if self._errors:
            self._errors.close()
        shutil.rmtree(self._compiled, ignore_errors=True)
        self._process, self._buffer = None, bytearray()

    def _start(self) -> None:
        self._answers, child_end = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        # -P: else a checkout of another version, if that is where the user stands, would come before this one.
        command = [sys.executable, "-P", "-m", "vocabench.harness.run.worker", "--framework", self.framework]
        command += ["--answers", str(child_end), "--parent", str(os.getpid())]
        path = os.pathsep.join(filter(None, [str(IMPORT_ROOT), os.environ.get("PYTHONPATH")]))
        threads = dict.fromkeys(_THREADS, str(self.threads)) if self.threads else {}
        compiled = {name: str(self._compiled / name.lower()) for name in _COMPILED}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=subprocess.STDOUT,
            pass_fds=(child_end,),
            start_new_session=True,
            env={**os.environ, **compiled, **threads, **_ONE_ARENA, "PYTHONPATH": path},
        )
        os.close(child_end)

    def _messages(self, ends: float) -> Iterator[dict[str, Any]]:
        """The messages that have come in, after waiting for some."""
        remaining = ends - time.monotonic()
        # A child may have something to say all the time, and no end of it.
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
                raise WorkerDied(f"the worker wrote what is no answer: {bytes(line[:200])!r}")
            yield message

    def _died(self, ends: float) -> WorkerDied:
        """What became of a child that says no more: it may live on, with its end of the pipe closed."""
        assert self._process is not None
        assert self._errors is not None
        try:
            code = self._process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError from None
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _LAST_WORDS))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.kill()
        return WorkerDied(f"the worker was {how}" + (f": {lines[-1]}" if lines else ""))


def _message(line: bytearray) -> dict[str, Any] | None:
    """{"progress": text} or {"result": object}; None for anything else."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(message, dict) and len(message) == 1:
        for name, kind in (("progress", str), ("result", dict)):
            if isinstance(message.get(name), kind):
                return message
    return None


def describe(framework: str) -> dict[str, Any]:
    """Devices and versions of a framework, asked of a child process."""
    with Worker(framework) as worker:
        (message,) = worker.ask({"describe": True}, deadline=_START_DEADLINE)
        return message["result"]


def check_device(frameworks: Iterable[str], device: str) -> None:
    """Raises `BadInput` where a framework has no such device."""
    if device == "cpu":
        return
    for framework in frameworks:
        try:
            devices = describe(framework)["devices"]
        except (WorkerDied, TimeoutError) as error:
            raise BadInput(f"framework {framework!r} does not start: {error}") from error
        if device not in devices and f"{device}:0" not in devices:
            raise BadInput(f"device {device!r}: {framework} has none here: allowed: {', '.join(devices)}")


def run(cells: Iterable[Cell], store: Store, *, deadline: float, progress: Progress) -> Iterator[Row]:
    """Measure the cells that `store` does not hold yet, and yield each row once it is on disk."""
    worker: Worker | None = None
    try:
        for cell in cells:
            if cell.key in store:
                continue
            if worker is None or worker.framework != cell.framework or _wants_fresh_process(cell):
                if worker:
                    worker.kill()
                worker = Worker(cell.framework)
            progress(cell, "")
            for said in measure(worker, cell, deadline):
                if isinstance(said, str):
                    progress(cell, said)
                else:
                    store.append(said)
                    if said["status"] in ("error", "oom"):
                        worker.kill()  # a device that failed once may fail whatever its process asks next
                    yield said
    finally:
        if worker:
            worker.kill()


def run_side_by_side(cells: Iterable[Cell], store: Store, *, deadline: float, progress: Progress) -> Iterator[Row]:
    """As `run`, with as many child processes at once as there are frameworks: for cells in which time is not what is
    measured. A process that has done its framework's cells helps out where most are left."""
    waiting: dict[str, deque[Cell]] = {}
    for cell in cells:
        waiting.setdefault(cell.framework, deque()).append(cell)
    finished: queue.SimpleQueue[Row | BaseException | None] = queue.SimpleQueue()
    taking = threading.Lock()

    def take(framework: str) -> Iterator[Cell]:
        while True:
            with taking:
                own = waiting[framework]
                longest = max(waiting.values(), key=len)
                if not longest:
                    return
                # From its end, so that the two processes meet last.
                cell = own.popleft() if own else longest.pop()
            yield cell

    def work(framework: str) -> None:
        try:
            for each in run(take(framework), store, deadline=deadline, progress=progress):
                finished.put(each)
        except BaseException as error:  # handed on to the caller's thread
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
        with taking:  # where one failed the others end with the cell that they have
            for cells_left in waiting.values():
                cells_left.clear()


def _wants_fresh_process(cell: Cell) -> bool:
    """Some tasks would measure what an earlier cell left behind, such as memory that its framework keeps."""
    return cell.task in registry.tasks() and getattr(registry.task(cell.task), "FRESH_PROCESS", False)


def measure(worker: Worker, cell: Cell, deadline: float, code: str | None = None) -> Iterator[str | Row]:
    """Lines of progress, then the cell's row. What befalls the child becomes the row's status.

    Args:
        code: Fingerprint of the code that the run began with; None is this process's.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    code = code or provenance.code_fingerprint()
    # The child imports as it goes: now, and until it answers.
    if (here := provenance.fingerprint()) != code:
        yield _of_other_code(cell, here, code, started)
        return
    try:
        for message in worker.ask({"cell": cell.to_json()}, deadline=deadline):
            if "progress" in message:
                yield message["progress"]
            else:
                yield _answered(worker, cell, message["result"], started, code)
    except TimeoutError:
        yield failed(cell, "timeout", f"no result within {deadline:g} s", started)
    except WorkerDied as error:
        # Without a word and by SIGKILL: that is how the kernel answers a lack of memory.
        yield failed(cell, "oom" if "killed by SIGKILL" in str(error) else "error", str(error), started)


def _answered(worker: Worker, cell: Cell, answer: dict[str, Any], started: str, code: str) -> Row:
    """The row of what a worker answers. One whose answer has another form is not asked again."""
    try:
        found = storable(_row(cell, answer, started))
        row.check(found)
    except BadInput as error:
        worker.kill()
        return failed(cell, "error", f"the worker's answer has another form: {error}", started)
    if answer.get("code") != code:
        worker.kill()
        return _of_other_code(cell, answer.get("code"), code, started)
    return found


def _of_other_code(cell: Cell, here: object, code: str, started: str) -> Row:
    message = f"other code is here ({here}) than the run began with ({code}): allowed: the same, on every node"
    return failed(cell, "error", message, started)


def failed(cell: Cell, status: str, message: str, started: str = "") -> Row:
    """The row of a cell that has no answer."""
    return _row(cell, {"status": status, "message": message, "measurements": []}, started)


def _row(cell: Cell, answer: dict[str, Any], started: str) -> Row:
    return {
        "key": cell.key,
        "cell": cell.to_json(),
        "status": answer.get("status"),
        "message": answer.get("message", ""),
        "measurements": answer.get("measurements"),
        "agreement": answer.get("agreement", {}),
        "provenance": {
            **provenance.of_run(),
            "framework": answer.get("framework", {}),
            "data": answer.get("data", {}),
            "started": started,
            "seconds": answer.get("seconds"),
        },
    }
