"""The store: one JSON line a finished cell, appended and forced to disk before the next cell begins."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import stat
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from vocabench.harness.run.schema import LARGEST
from vocabench.impls.errors import BadInput

SCHEMA = 1

_BEGIN = f'{{"schema": {SCHEMA}, '.encode()  # of each row, as `Store.append` writes it

_CLOSED = -1  # in place of a descriptor

Row = dict[str, Any]


class OtherSchema(BadInput):
    """Rows of another version of this program."""


_REQUIRED = ("schema", "key", "cell", "status", "measurements", "provenance")
_NO_ROW = "not a JSON row: allowed: lines written by 'vocabench run'"


class Store:
    """Rows of one run, open for appending. Two processes never write the same file at once.

    A process killed while it wrote can leave half a row at the end. Opening moves that half to a new file beside it,
    `<name>.partial`, so that the cell is done again and every line is whole.

    Cells whose status is one of `again` count as missing.

    Attributes:
        cut: Where the half row is that opening moved; None where every line was whole.

    Raises:
        BadInput: The file is in use, read-only, on a full disk, or of another schema, or holds what is no row, and not
            the beginning of one at its end: it stays as it is.
    """

    def __init__(self, path: Path, *, again: tuple[str, ...] = ()) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadInput(f"results file {path}: {error.strerror}: allowed: a place that can be written") from error
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            os.close(self._file)
            raise BadInput(f"results file {path}: it is no file that keeps rows: allowed: a plain file, or a new one")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise BadInput(f"results file {path} is in use by another run: allowed: one run at a time") from error
        try:
            rows, half = _parsed(path)
            self._keys = {row["key"] for row in latest(rows) if row["status"] not in again}
            self.cut = self._move(half) if half else None
        except BaseException:
            os.close(self._file)  # or the file stays in use as long as this process lives
            raise

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            os.close(self._file)
            self._file = _CLOSED

    def append(self, row: Row) -> None:
        """Write one row and return when it is on disk. A row that could not be written whole is taken back.

        Raises:
            BadInput: It could not be written.
            ValueError: The store is closed: a thread that outlives it must not write to what has its descriptor since.
        """
        with self._lock:
            if self._file == _CLOSED:
                raise ValueError(f"results file {self.path} is closed")
            self._append(row)

    def _append(self, row: Row) -> None:
        line = (json.dumps(storable({"schema": SCHEMA, **row}), allow_nan=False) + "\n").encode()
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
        self._keys.add(row["key"])

    def _move(self, half: bytes) -> Path:
        """From the end of the file to one whose name nothing has yet."""
        path = self.path.with_name(f"{self.path.name}.partial")
        for number in itertools.count(2):
            with suppress(FileExistsError), path.open("xb") as file:
                file.write(half)
                break
            path = self.path.with_name(f"{self.path.name}.partial{number}")
        os.ftruncate(self._file, os.fstat(self._file).st_size - len(half))
        return path


def storable(value: Any) -> Any:
    """What the file can hold of it. For NaN and infinity, which JSON has not, null stands; for half characters, which
    UTF-8 has not, their codes."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, float):
        return value if abs(value) < LARGEST else None
    if isinstance(value, dict):
        return {name: storable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value


def read(path: Path) -> list[Row]:
    """Every row of a results file.

    Raises:
        BadInput: There is no such file, a line is cut or is not a row, or it has another schema version.
    """
    rows, half = _parsed(path)
    if half:
        raise BadInput(
            f"results file {path}, line {len(rows) + 1}: cut in the middle: the same 'vocabench run' command repairs it"
        )
    return rows


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and infinity: Python's own, no JSON


def latest(rows: Iterable[Row]) -> list[Row]:
    """The last row of each cell: what was measured again takes the place of what failed before."""
    return list({row["key"]: row for row in rows}.values())


def _parsed(path: Path) -> tuple[list[Row], bytes]:
    """The rows of the lines that end, and what follows them: the beginning of a row, or nothing."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"results file {path}: {error.strerror}: allowed: a file written by 'vocabench run'") from error
    *lines, rest = content.split(b"\n")
    rows = [_row(f"results file {path}, line {number}", line) for number, line in enumerate(lines, start=1)]
    if rest[: len(_BEGIN)] != _BEGIN[: len(rest)]:
        raise BadInput(f"results file {path}, line {len(lines) + 1}: {_NO_ROW}")
    return rows, rest


def _row(where: str, line: bytes) -> Row:
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: {_NO_ROW}") from error
    version = row.get("schema") if isinstance(row, dict) else None
    if type(version) is not int or version != SCHEMA:  # true and 1.0 are equal to 1
        raise OtherSchema(f"{where}: schema version {version!r}: allowed: {SCHEMA}")
    missing = [name for name in _REQUIRED if name not in row]
    kinds = {"key": str, "cell": dict, "measurements": list}
    wrong = missing or [name for name, kind in kinds.items() if not isinstance(row[name], kind)]
    if wrong:
        raise BadInput(f"{where}: no row: {', '.join(wrong)} missing or of another form")
    return row
