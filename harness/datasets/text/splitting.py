"""A single text file cut into splits, in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from vocabench.harness.datasets.shared import utf8_lines
from vocabench.harness.datasets.text.tokenization import check_utf8
from vocabench.impls import cache_folder
from vocabench.impls.cache_folder import sha256_of_file

_CHUNK = 1 << 20


def split(path: Path, ends: Mapping[str, int]) -> dict[str, Path]:
    """Return a file for each split of a text file.

    Args:
        path: Path of the whole file.
        ends: By split, in order, the byte where it ends. A cut moves to the end of the line that it falls into, or to
            the end of a word where no line ends nearby.

    Raises:
        BadInput: The file is not UTF-8.
    """

    def cut(folder: Path) -> None:
        check_utf8(path)  # here, so that a message names the user's file and not its piece in the cache
        with path.open("rb") as source:
            for name, end in ends.items():
                with (folder / f"{name}.txt").open("wb") as target:
                    while (missing := end - source.tell()) > 0 and (piece := source.read(min(missing, _CHUNK))):
                        target.write(piece)
                    if target.tell():
                        target.write(_rest_of_line(source))

    key = hashlib.sha256(json.dumps([sha256_of_file(path), ends]).encode()).hexdigest()[:16]
    folder = cache_folder.filled(cache_folder.path() / "texts" / f"{path.stem}-{key}", cut)
    return {name: folder / f"{name}.txt" for name in ends}


def _rest_of_line(source: BinaryIO) -> bytes:
    start = source.tell()
    ahead = source.read(_CHUNK)
    length = utf8_lines.end_of_line(ahead) or ahead.find(b" ") + 1
    source.seek(start + length)
    return ahead[:length]
