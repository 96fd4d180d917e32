"""The store: one JSON line per finished cell, appended and flushed to disk before the next cell begins."""

from __future__ import annotations

import fcntl
import gc
import itertools
import json
import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vocabench.harness.run import processes
from vocabench.harness.run.damaged_line import DamagedLine
from vocabench.harness.run.rows import SCHEMA, Row
from vocabench.harness.run.schema import plain_decoder
from vocabench.impls.errors import BadInput

_BEGIN = f'{{"schema": {SCHEMA}, '.encode()  # the first bytes of each row that `Store.append` writes

_MOST_WARNINGS = 5  # about lines of one file
_CLOSED = -1  # instead of a file descriptor

_DECODER = plain_decoder()


class Store:
    """Rows of one run, open for appending. Only one process at a time can open a file.

    A process that is killed while it writes can leave an incomplete row at the end. Opening the file moves that part
    to a new file next to it, `<name>.partial`, so that the cell is measured again and every line is complete. Damaged
    lines between the rows stay in the file, and their cells are measured again. A new file that stays empty is removed.

    Args:
        again: Statuses whose cells count as missing.

    Attributes:
        unfinished: Rows of the cells that were measured in fewer processes than they are to be, by key.
        cut: Path of the incomplete row that opening moved; None if every line was complete.

    Raises:
        BadInput: The file is in use, read-only or on a full disk, or it has lines but no row. The file stays unchanged.
    """

    def __init__(self, path: Path, *, again: tuple[str, ...] = ()) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._is_new = not path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadInput(f"results file {path}: {error.strerror}: allowed: a place that can be written") from error
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            os.close(self._file)
            raise BadInput(f"results file {path} is not a regular file: allowed: a regular file, or a new one")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise BadInput(f"results file {path} is in use by another run: allowed: one run at a time") from error
        try:
            rows, incomplete = _parse(path)
            kept = [row for row in latest(rows) if row.status not in again]
            self.unfinished = {row.key: row for row in kept if not processes.is_complete(row)}
            self._keys = {row.key for row in kept} - set(self.unfinished)
            self.cut = self._move(incomplete) if incomplete else None
        except BaseException:
            os.close(self._file)  # otherwise the file stays in use as long as this process lives
            raise

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._is_new and os.fstat(self._file).st_size == 0:
                self.path.unlink(missing_ok=True)  # before other processes can open it
            os.close(self._file)
            self._file = _CLOSED

    def append(self, row: Row) -> None:
        """Write one row and return once it is on disk. An incompletely written row is removed again.

        Raises:
            BadInput: The row could not be written.
            ValueError: The store is closed. Another file may have its descriptor by now.
        """
        with self._lock:
            if self._file == _CLOSED:
                raise ValueError(f"results file {self.path} is closed")
            self._append(row)

    def _append(self, row: Row) -> None:
        line = (json.dumps(row.to_json(), allow_nan=False) + "\n").encode()
        end = os.lseek(self._file, 0, os.SEEK_END)
        try:
            written = os.write(self._file, line)
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)
            raise BadInput(
                f"results file {self.path}: {error.strerror}: rows so far are kept; allowed: free space, then the same "
                "command again"
            ) from error
        if processes.is_complete(row):
            self._keys.add(row.key)

    def _move(self, incomplete: bytes) -> Path:
        """Move the end of the file to a new file with an unused name, and return its path."""
        path = self.path.with_name(f"{self.path.name}.partial")
        for number in itertools.count(2):
            with suppress(FileExistsError), path.open("xb") as file:
                file.write(incomplete)
                break
            path = self.path.with_name(f"{self.path.name}.partial{number}")
        os.ftruncate(self._file, os.fstat(self._file).st_size - len(incomplete))
        return path


def read(path: Path, reduce: Callable[[Row], Row] | None = None) -> list[Row]:
    """Return every row of a results file, and warn of each line that is not a row (`DamagedLine`).

    Args:
        reduce: Returns the part of a row that is kept in memory; None keeps all.

    Raises:
        BadInput: The file is missing, its last line is incomplete, or it has lines but no row.
    """
    rows, incomplete = _parse(path, reduce)
    if incomplete:
        raise BadInput(f"results file {path}: its last line is cut in the middle: the same 'vocabench run' repairs it")
    return rows


def latest(rows: Iterable[Row]) -> list[Row]:
    """Return the last row of each cell, so that a repeated measurement replaces one that failed."""
    return list({row.key: row for row in rows}.values())


def _parse(path: Path, reduce: Callable[[Row], Row] | None = None) -> tuple[list[Row], bytes]:
    """Return the rows of the complete lines, and the incomplete line that follows them, if any."""
    rows: list[Row] = []
    refused: list[BadInput] = []
    try:
        with path.open("rb") as file, _without_collection():
            for number, line in enumerate(file, start=1):
                place = f"results file {path}, line {number}"
                if not line.endswith(b"\n"):
                    if not rows and line[: len(_BEGIN)] != _BEGIN[: len(line)]:
                        refused.append(_not_json(place))
                        break
                    _refuse_or_warn(rows, refused)
                    return rows, line
                try:
                    row = _row(place, line)
                    rows.append(reduce(row) if reduce else row)
                except BadInput as error:
                    refused.append(error)
    except OSError as error:
        raise BadInput(f"results file {path}: {error.strerror}: allowed: a file written by 'vocabench run'") from error
    _refuse_or_warn(rows, refused)
    return rows, b""


@contextmanager
def _without_collection() -> Iterator[None]:
    """Pause the garbage collector, which otherwise searches all rows again and again while they are read."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _refuse_or_warn(rows: Sequence[Row], refused: Sequence[BadInput]) -> None:
    """Raise the first error of a file without rows. Otherwise each damaged line costs itself and a warning."""
    if refused and not rows:
        raise refused[0]
    for error in refused[:_MOST_WARNINGS]:
        reason = str(error).partition(": allowed: ")[0]
        warnings.warn(DamagedLine(f"{reason}: this line is left out"), stacklevel=4)
    if len(refused) > _MOST_WARNINGS:
        more = f"{len(refused) - _MOST_WARNINGS} more lines that are not rows are left out"
        place = str(refused[_MOST_WARNINGS]).partition(": ")[0]
        warnings.warn(DamagedLine(f"{place} and below: {more}"), stacklevel=4)


def _row(place: str, line: bytes) -> Row:
    try:
        fields, is_plain = _parsed(line)
    except (ValueError, RecursionError) as error:
        raise _not_json(place) from error
    try:
        return Row.from_json(fields, is_plain=is_plain)
    except BadInput as error:
        raise type(error)(f"{place}: {error}") from error


def _parsed(line: bytes) -> tuple[Any, bool]:
    """Return the value of a line, and whether `plain` is known to accept it.

    msgspec parses and checks a line several times as fast as Python does, to the same value. What it refuses is left to
    Python's parser, whose value the checks of `Row.from_json` describe.
    """
    with suppress(ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        return _DECODER.decode(line), True
    return json.loads(line, parse_constant=_refuse_constant), False


def _not_json(place: str) -> BadInput:
    return BadInput(f"{place}: not a JSON row: allowed: lines written by 'vocabench run'")


def _refuse_constant(name: str) -> None:
    """Refuse NaN and infinity, which are not JSON, although Python reads and writes them."""
    raise ValueError(name)
