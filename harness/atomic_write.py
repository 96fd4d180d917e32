"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_MODE = 0o644


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path`, which takes its place once it is written and on disk; where writing fails, what was there
    stays as it is. A pipe or a device, which nothing may take the place of, is written to at once.

    Raises:
        OSError: It cannot be written; names `path`.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
        else:
            with _beside(Path(os.path.realpath(path))) as file:
                yield file
    except OSError as error:
        error.filename = str(path)  # where there is no space it names none, else the file beside
        raise


def write_whole(path: Path, text: str) -> None:
    """As `written_whole`."""
    with written_whole(path) as file:
        file.write(text.encode())


@contextmanager
def _beside(path: Path) -> Iterator[BinaryIO]:
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, path.stat().st_mode if path.exists() else _MODE)
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
