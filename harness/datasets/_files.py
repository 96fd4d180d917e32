"""Where text lies: the cache, which holds whole folders or none, and the user's own folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from harness.datasets._text import check_utf8
from impls.errors import BadInput

Progress = Callable[[str], None]

# What reading a damaged archive raises.
DAMAGED_ZIP = zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError

_CHUNK = 1 << 20
_MANIFEST = "manifest.json"
_ABANDONED_SECONDS = 24 * 3600


def cache_folder() -> Path:
    """`VOCABENCH_CACHE`, or `vocabench` in the user's cache folder."""
    given = os.environ.get("VOCABENCH_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "vocabench"


def local_folder(name: str) -> Path | None:
    """The dataset's folder below `VOCABENCH_DATA`, where the user has one."""
    data = os.environ.get("VOCABENCH_DATA")
    folder = Path(data) / name if data else None
    return folder if folder and folder.is_dir() else None


def sha256_of_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"file {path}: {error.strerror}: allowed: a file that can be read") from error


def sha256_of(files: Mapping[str, Path]) -> str:
    """Of the contents of all splits, whatever their files are called."""
    digests = {split: sha256_of_file(path) for split, path in files.items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def filled(folder: Path, fill: Callable[[Path], None]) -> Path:
    """`folder`, which `fill` fills unless it is there and whole.

    It appears in one step, with the checksums of its files. Whoever is killed on the way leaves no half-filled folder;
    of two processes that fill it at once, the first wins; a damaged one is filled again.

    Raises:
        BadInput: It cannot be written: no permission, or no space.
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
    """Whether `filled` finished it and nothing has changed since."""
    try:
        checksums = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(checksums, dict):
        return False
    try:
        return all(sha256_of_file(folder / name) == expected for name, expected in checksums.items())
    except ValueError:  # a file that cannot be read, or a name that none can have
        return False


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed left of it, but not what others may still be filling."""
    for scratch in folder.parent.glob(f".{folder.name}-*"):
        with suppress(FileNotFoundError):  # its owner finished just now
            if time.time() - scratch.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(scratch, ignore_errors=True)


def _put(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:
        if is_whole(folder):  # another process was first
            return
        # Out of the way before it is removed: another process may have files of the damaged folder open.
        folder.rename(scratch.with_name("damaged"))
        scratch.rename(folder)


def hold_out(path: Path, ends: Mapping[str, int]) -> dict[str, Path]:
    """One file cut into splits, in the cache.

    Args:
        path: The file.
        ends: Split to the byte where it ends, in order. A cut moves on to the end of the line it falls into, or of the
            word where that line is endless.
    """

    def cut(folder: Path) -> None:
        check_utf8(path)  # or what is wrong would be told of a piece of it in the cache
        with path.open("rb") as source:
            for split, end in ends.items():
                with (folder / f"{split}.txt").open("wb") as target:
                    while (missing := end - source.tell()) > 0 and (piece := source.read(min(missing, _CHUNK))):
                        target.write(piece)
                    if target.tell():
                        target.write(_rest_of_line(source))

    key = hashlib.sha256(json.dumps([sha256_of_file(path), ends]).encode()).hexdigest()[:16]
    folder = filled(cache_folder() / "texts" / f"{path.stem}-{key}", cut)
    return {split: folder / f"{split}.txt" for split in ends}


def _rest_of_line(source: BinaryIO) -> bytes:
    start = source.tell()
    ahead = source.read(_CHUNK)
    length = ahead.find(b"\n") + 1 or ahead.find(b" ") + 1
    source.seek(start + length)
    return ahead[:length]
