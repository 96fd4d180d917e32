"""The cache folder for datasets and compiled kernels, which contains complete folders only."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vocabench.impls.errors import BadInput

_MANIFEST = "manifest.json"
_ABANDONED_SECONDS = 24 * 3600


def path() -> Path:
    """Return `VOCABENCH_CACHE`, or `vocabench` in the user's cache folder."""
    given = os.environ.get("VOCABENCH_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "vocabench"


def sha256_of_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"file {path}: {error.strerror}: allowed: a file that can be read") from error


def filled(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return `folder`, after calling `fill` unless it exists and is complete.

    The folder appears in one step, with the checksums of its files. A process that is killed leaves no half-filled
    folder. If two processes fill it at once, the first one wins. A damaged folder is filled again.

    Raises:
        BadInput: The folder cannot be written, because of missing permission or space.
    """
    if is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            inner = Path(scratch) / "new"
            inner.mkdir()
            fill(inner)
            checksums = {path.name: sha256_of_file(path) for path in sorted(inner.iterdir())}
            (inner / _MANIFEST).write_text(json.dumps(checksums), encoding="utf-8")
            _put(inner, folder)
    except OSError as error:
        raise BadInput(
            f"cache folder {folder}: {error.strerror or error}: allowed: free space in a place that can be written; "
            "VOCABENCH_CACHE names another"
        ) from error
    return folder


def is_whole(folder: Path) -> bool:
    """Return whether `filled` completed the folder and nothing has changed since."""
    try:
        checksums = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(checksums, dict):
        return False
    try:
        return all(sha256_of_file(folder / name) == expected for name, expected in checksums.items())
    except ValueError:  # an unreadable file, or an invalid name
        return False


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind, but not what other processes may still be filling."""
    for scratch in folder.parent.glob(f".{folder.name}-*"):
        with suppress(FileNotFoundError):  # its owner has just finished
            if time.time() - scratch.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(scratch, ignore_errors=True)


def _put(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:
        if is_whole(folder):  # another process was faster
            return
        # Renamed before it is removed, since another process may have files of the damaged folder open.
        folder.rename(scratch.with_name("damaged"))
        scratch.rename(folder)
