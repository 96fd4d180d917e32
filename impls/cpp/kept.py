"""Compiled kernels are kept for the next process, in a room of the cache folder that nobody else can enter."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput

LIBRARY = "kernels.so"
_UNUSED_SECONDS = 30 * 24 * 3600


@contextmanager
def compiled(name: str, made_of: Iterable[str], compile_to: Callable[[Path], None]) -> Iterator[str]:
    """The path of a library, kept from before if it was made of the same. Where nothing can be kept, of one that is
    there for as long as the context.

    Args:
        name: Of the library, for those who look into the folder.
        made_of: All that decides what the compiler makes of it.
        compile_to: Makes `LIBRARY` in a folder.
    """
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:24]
    folder = _folder(f"{name}-{key}", compile_to)
    if folder is None:
        with tempfile.TemporaryDirectory() as scratch:
            compile_to(Path(scratch))
            yield f"{scratch}/{LIBRARY}"
        return
    try:
        yield f"{folder}/{LIBRARY}"
    except OSError:  # what cannot be loaded is made anew the next time
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _folder(name: str, compile_to: Callable[[Path], None]) -> Path | None:
    """Where the library is kept; None where it cannot be."""
    import fcntl  # there is none under Windows, where there are no kernels

    try:
        room = _room()
        with (room / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process that compiles is waited for
            folder = cache_folder.filled(room / name, compile_to)
            os.utime(folder)
            _remove_unused(room)
        return folder
    except (OSError, BadInput, RuntimeError):  # the last where the user has no home
        return None


def _room() -> Path:
    """The folder of libraries.

    Raises:
        OSError: It cannot be made, or others can write to it: what is in it would be run.
    """
    room = cache_folder.path() / "kernels"
    room.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = room.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{room} is open to others")
    return room


def _remove_unused(room: Path) -> None:
    for folder in room.iterdir():
        if folder.is_dir() and time.time() - folder.stat().st_mtime > _UNUSED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
