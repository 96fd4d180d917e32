"""The store: one JSON line a finished cell, appended and forced to disk before the next cell begins."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.schema import LARGEST
from impls.errors import BadInput

SCHEMA = 1

_CLOSED = -1  # in place of a descriptor

Row = dict[str, Any]


class OtherSchema(BadInput):
    """Rows of another version of this program."""


_REQUIRED = ("schema", "key", "cell", "status", "measurements", "provenance")


class Store:
    """Rows of one run, open for appending. Two processes never write the same file at once.

    A process killed while it wrote can leave half a line at the end. Opening keeps that half beside the file, as
    `<name>.partial`, and cuts it off, so that the cell is done again and every line is whole.

    Cells whose status is one of `again` count as missing.

    Raises:
        BadInput: The file is in use, read-only, on a full disk, of another schema, or damaged before its last line.
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
            self._repair()
            self._keys = {row["key"] for row in latest(read(path)) if row["status"] not in again}
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

    def _repair(self) -> None:
        size = os.fstat(self._file).st_size
        content = os.pread(self._file, size, 0) if size else b""
        whole = content.rfind(b"\n") + 1
        if whole < size:
            self.path.with_name(self.path.name + ".partial").write_bytes(content[whole:])
            os.ftruncate(self._file, whole)


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
    return list(_rows(path))


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and infinity: Python's own, no JSON


def latest(rows: Iterable[Row]) -> list[Row]:
    """The last row of each cell: what was measured again takes the place of what failed before."""
    return list({row["key"]: row for row in rows}.values())


def _rows(path: Path) -> Iterator[Row]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"results file {path}: {error.strerror}: allowed: a file written by 'vocabench run'") from error
    lines = content.split(b"\n")
    if lines[-1]:
        raise BadInput(
            f"results file {path}, line {len(lines)}: cut in the middle: the same 'vocabench run' command repairs it"
        )
    for number, line in enumerate(lines[:-1], start=1):
        where = f"results file {path}, line {number}"
        try:
            row = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{where}: not a JSON row: allowed: lines written by 'vocabench run'") from error
        if not isinstance(row, dict) or row.get("schema") != SCHEMA:
            found = row.get("schema") if isinstance(row, dict) else None
            raise OtherSchema(f"{where}: schema version {found!r}: allowed: {SCHEMA}")
        missing = [name for name in _REQUIRED if name not in row]
        kinds = {"key": str, "cell": dict, "measurements": list}
        wrong = missing or [name for name, kind in kinds.items() if not isinstance(row[name], kind)]
        if wrong:
            raise BadInput(f"{where}: no row: {', '.join(wrong)} missing or of another form")
        yield row
