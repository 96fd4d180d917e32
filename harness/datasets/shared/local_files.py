"""Where text lies: the user's own folder, and what is made of it in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from vocabench.harness.datasets.text.tokenization import check_utf8
from vocabench.impls import cache_folder
from vocabench.impls.cache_folder import sha256_of_file

Progress = Callable[[str], None]

# What reading a damaged archive raises.
DAMAGED_ZIP = zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError

_CHUNK = 1 << 20


def local_folder(name: str) -> Path | None:
    """The dataset's folder below `VOCABENCH_DATA`, where the user has one."""
    data = os.environ.get("VOCABENCH_DATA")
    folder = Path(data) / name if data else None
    return folder if folder and folder.is_dir() else None


def sha256_of(files: Mapping[str, Path]) -> str:
    """Of the contents of all splits, whatever their files are called."""
    digests = {split: sha256_of_file(path) for split, path in files.items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


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
    folder = cache_folder.filled(cache_folder.path() / "texts" / f"{path.stem}-{key}", cut)
    return {split: folder / f"{split}.txt" for split in ends}


def _rest_of_line(source: BinaryIO) -> bytes:
    start = source.tell()
    ahead = source.read(_CHUNK)
    length = ahead.find(b"\n") + 1 or ahead.find(b" ") + 1
    source.seek(start + length)
    return ahead[:length]
