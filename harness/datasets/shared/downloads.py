"""Downloads that are checked before anyone reads them."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import stat
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vocabench.harness.datasets.shared.local_files import DAMAGED_ZIP, Progress, sha256_of_file
from vocabench.impls.errors import BadInput

_TIMEOUT_SECONDS = 60.0  # without a byte
_CHUNK = 1 << 20
_MOST_BYTES = 1 << 33  # of a download or of a member: a disk is not filled before a checksum tells
_AGENT = "vocabench/0"  # some servers refuse the one urllib gives itself


@dataclass(frozen=True)
class Download:
    """A file of a published corpus.

    Attributes:
        url: Where it is.
        sha256: Of what the server sends.
        members: Of a zip file, member to the name it is given; empty for a file that is used as it is.
    """

    url: str
    sha256: str
    members: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]

    def into(self, folder: Path, progress: Progress, local: Path | None = None) -> None:
        """Put the file, or the members of the archive, into `folder`; `local` may hold a copy of the download.

        Raises:
            BadInput: The server does not answer; what came is cut short, has another checksum or lacks a member.
        """
        copy = local / self.name if local else None
        if copy and copy.is_file():
            check(copy, self.sha256)
            got = copy
        else:
            got = folder / self.name
            self._fetch(got, progress)
        if self.members:
            _extract(got, self.members, folder)
        if got.parent == folder and self.members:
            got.unlink()
        elif got.parent != folder and not self.members:
            shutil.copyfile(got, folder / self.name)

    def _fetch(self, target: Path, progress: Progress) -> None:
        digest = hashlib.sha256()
        received = 0
        try:
            request = urllib.request.Request(self.url, headers={"User-Agent": _AGENT})
            answer = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failed(getattr(error, "reason", None) or error) from error
        with answer, target.open("wb") as file:
            said = answer.headers.get("Content-Length") or "0"
            expected = int(said) if said.isdecimal() else 0
            while True:
                # Only what the network does is caught here: a full disk is another mistake.
                try:
                    chunk = answer.read(_CHUNK)
                except (OSError, http.client.HTTPException) as error:
                    raise self._failed(error) from error
                if not chunk:
                    break
                file.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                if received > _MOST_BYTES:
                    raise self._failed(f"more than {_MOST_BYTES:,} bytes came")
                progress(f"{self.name}: {received / 2**20:.0f} of {expected / 2**20:.0f} MiB")
        if expected and received != expected:
            raise self._failed(f"cut short, {received:,} of {expected:,} bytes came")
        if digest.hexdigest() != self.sha256:
            raise self._failed(f"sha256 is {digest.hexdigest()}, not {self.sha256}")

    def _failed(self, reason: object) -> BadInput:
        return BadInput(
            f"download of {self.url}: {reason}: allowed: a network that reaches it, or the file below VOCABENCH_DATA"
        )


def check(path: Path, sha256: str) -> None:
    found = sha256_of_file(path)
    if found != sha256:
        raise BadInput(f"file {path}: sha256 is {found}, not {sha256}: allowed: the file as published")


def _extract(archive: Path, members: Mapping[str, str], folder: Path) -> None:
    """Write the named members to the given names: nothing else in the archive, and nowhere else."""
    try:
        with zipfile.ZipFile(archive) as opened:
            for member, name in members.items():
                info = opened.getinfo(member)
                if stat.S_ISLNK(info.external_attr >> 16) or info.is_dir():
                    raise zipfile.BadZipFile(f"{member} is no file")
                if info.file_size > _MOST_BYTES:
                    raise zipfile.BadZipFile(f"{member} has {info.file_size:,} bytes, more than {_MOST_BYTES:,}")
                with opened.open(member) as source, (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target, _CHUNK)
    except (*DAMAGED_ZIP, KeyError) as error:
        raise BadInput(f"archive {archive}: {error}: allowed: a whole zip file with {', '.join(members)}") from error
