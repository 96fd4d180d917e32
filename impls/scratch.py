"""Temporary folders that are removed even if the process that made them is killed: at the next start of any other.

The owner of a folder, and the processes that it hands the lock to, hold a lock on a file in it. The kernel releases the
lock when the last of them has ended, whatever ended it.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_PREFIX = "vocabench-"
_LOCK = ".in-use"


class ScratchFolder:
    """A new folder in the system's folder for temporary files, which also clears those of ended processes.

    Args:
        purpose: Part of the folder's name.

    Attributes:
        lock: File descriptor to pass to child processes that use the folder.
    """

    def __init__(self, purpose: str) -> None:
        _sweep_once()
        self.path, self.lock = _locked_folder(f"{_PREFIX}{purpose}-")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            os.close(self.lock)


@contextmanager
def scratch(purpose: str) -> Iterator[Path]:
    """Yield a folder that exists until the context exits."""
    folder = ScratchFolder(purpose)
    try:
        yield folder.path
    finally:
        folder.remove()


def sweep() -> None:
    """Remove the folders of this user whose owners have all ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError):  # it is in use, was removed just now, or belongs to somebody else
            status = path.parent.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            lock = os.open(path, os.O_RDWR)
            try:
                _take(lock)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(lock)


@cache
def _sweep_once() -> None:
    sweep()


def _locked_folder(prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        lock = -1
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            _take(lock)
            if os.fstat(lock).st_nlink:
                return path, lock
        except (BlockingIOError, FileNotFoundError):
            pass  # another process swept the folder before it was locked
        if lock >= 0:
            os.close(lock)


def _take(lock: int) -> None:
    """Lock a file, or raise `BlockingIOError` if another process holds it."""
    import fcntl  # not available on Windows, where there are neither kernels nor workers

    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
