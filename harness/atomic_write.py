"""Atomic file writes: a file has its complete new contents, or is unchanged."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_MODE = 0o644


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file next to `path` that replaces it once it is written and flushed to disk.

    If writing fails, `path` stays as it was. A pipe or a device cannot be replaced and is written to directly.

    Raises:
        OSError: The file cannot be written. The error names `path`.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
        else:
            with _replacing(Path(os.path.realpath(path))) as file:
                yield file
    except OSError as error:
        error.filename = str(path)  # it names the temporary file, or no file if the disk is full
        raise


def write_atomically(path: Path, text: str) -> None:
    """Write a text file with `atomic_writer`."""
    with atomic_writer(path) as file:
        file.write(text.encode())


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, path.stat().st_mode if path.exists() else _MODE)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
