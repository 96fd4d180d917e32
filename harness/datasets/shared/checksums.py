"""Checksums of files and of whole datasets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from vocabench.impls.cache_folder import sha256_of_file
from vocabench.impls.errors import BadInput

__all__ = ["check", "sha256_of_file", "sha256_of_files"]


def sha256_of_files(files: Mapping[str, Path]) -> str:
    """Return the sha256 of several files by their keys and contents; their paths do not matter."""
    digests = {key: sha256_of_file(path) for key, path in files.items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def check(path: Path, sha256: str) -> None:
    """Raise `BadInput` unless the file has this sha256."""
    actual = sha256_of_file(path)
    if actual != sha256:
        raise BadInput(f"file {path}: sha256 is {actual}, not {sha256}: allowed: the file as published")
