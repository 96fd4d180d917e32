"""A cache of compiled objects and libraries for later processes, in a folder that no other user can write to."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput
from vocabench.impls.scratch import scratch

_UNUSED_SECONDS = 30 * 24 * 3600


@contextmanager
def compiled(name: str, inputs: Iterable[str], compile_to: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a folder with what was compiled from `inputs`, now or by an earlier process.

    If the cache cannot be used, the folder exists only until the context exits.

    Args:
        name: Prefix of the folder, for readers of the cache. Processes wait for each other if they compile something of
            the same name. A compilation may itself use what is compiled under another name.
        inputs: Everything that determines the compiler's output.
        compile_to: Compiles into a folder.
    """
    key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:24]
    folder = _cached(name, key, compile_to)
    if folder is None:
        with scratch("kernels") as uncached:
            compile_to(uncached)
            yield uncached
        return
    try:
        yield folder
    except OSError:  # a library that cannot be loaded is compiled again next time
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _cached(name: str, key: str, compile_to: Callable[[Path], None]) -> Path | None:
    """Return a folder in the cache, compiling its contents first if needed; None if the cache cannot be used."""
    import fcntl  # not available on Windows, where there are no kernels

    try:
        cache = _cache()
        with (cache / f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # waits for another process that compiles
            folder = cache_folder.filled(cache / f"{name}-{key}", compile_to)
            os.utime(folder)
            _remove_unused(cache)
        return folder
    except (OSError, BadInput, RuntimeError):  # RuntimeError: the user has no home folder
        return None


def _cache() -> Path:
    """Return the folder of everything compiled.

    Raises:
        OSError: The folder cannot be created, or other users can write to it. Its contents are executed.
    """
    cache = cache_folder.path() / "kernels"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = cache.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"other users can write to {cache}")
    return cache


def _remove_unused(cache: Path) -> None:
    for folder in cache.iterdir():
        if folder.is_dir() and time.time() - folder.stat().st_mtime > _UNUSED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
