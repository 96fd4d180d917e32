"""Extraction of single members of zip archives."""

from __future__ import annotations

import shutil
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from vocabench.impls.errors import BadInput

# Raised by `zipfile` when it reads a damaged archive.
DAMAGED_ZIP = zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError

_CHUNK = 1 << 20


def extract(archive: Path, members: Mapping[str, str], folder: Path, max_bytes: int) -> None:
    """Write the given members of an archive into a folder, and nothing else.

    Args:
        archive: Path of the zip file.
        members: File name to write, by member.
        folder: Folder to write to.
        max_bytes: Largest size of a member.

    Raises:
        BadInput: The archive is damaged, or a member is missing, too large or not a regular file.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            for member, name in members.items():
                info = opened.getinfo(member)
                if stat.S_ISLNK(info.external_attr >> 16) or info.is_dir():
                    raise zipfile.BadZipFile(f"{member} is not a regular file")
                if info.file_size > max_bytes:
                    raise zipfile.BadZipFile(f"{member} has {info.file_size:,} bytes, more than {max_bytes:,}")
                with opened.open(member) as source, (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target, _CHUNK)
    except (*DAMAGED_ZIP, KeyError) as error:
        raise BadInput(f"archive {archive}: {error}: allowed: a whole zip file with {', '.join(members)}") from error
