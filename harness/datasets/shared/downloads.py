"""Downloads whose checksums are verified."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vocabench.harness.datasets.shared import archives, checksums
from vocabench.harness.datasets.shared.dataset import Progress
from vocabench.impls.errors import Unsupported

_TIMEOUT_SECONDS = 60.0  # without a byte
_CHUNK = 1 << 20
_MOST_BYTES = 1 << 33  # of a download or an archive member, so that neither fills the disk before its checksum is known
_AGENT = "vocabench/0"  # some servers refuse urllib's default


@dataclass(frozen=True)
class Download:
    """A file of a published corpus.

    Attributes:
        url: Address of the file.
        sha256: Checksum of what the server sends.
        members: For a zip archive, the file name to write for each member; empty for a file that is used as it is.
    """

    url: str
    sha256: str
    members: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """File name of the download."""
        return self.url.rsplit("/", 1)[1]

    def into(self, folder: Path, progress: Progress, local: Path | None = None) -> None:
        """Write the file, or the members of the archive, into a folder.

        Args:
            folder: Folder to write to.
            progress: Called with a line of text now and then.
            local: Folder that may hold a copy of the download.

        Raises:
            Unsupported: The server does not answer, or its answer is incomplete, has another checksum or lacks a
                member.
        """
        copy = local / self.name if local else None
        if copy and copy.is_file():
            checksums.check(copy, self.sha256)
            received = copy
        else:
            received = folder / self.name
            self._fetch(received, progress)
        if self.members:
            archives.extract(received, self.members, folder, _MOST_BYTES)
        if received.parent == folder and self.members:
            received.unlink()
        elif received.parent != folder and not self.members:
            shutil.copyfile(received, folder / self.name)

    def _fetch(self, target: Path, progress: Progress) -> None:
        digest = hashlib.sha256()
        received = 0
        try:
            request = urllib.request.Request(self.url, headers={"User-Agent": _AGENT})
            answer = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failed(getattr(error, "reason", None) or error) from error
        with answer, target.open("wb") as file:
            length = answer.headers.get("Content-Length") or "0"
            expected = int(length) if length.isdecimal() else 0
            while True:
                # Only network errors are caught here; a full disk is reported by the cache.
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
                    raise self._failed(f"more than {_MOST_BYTES:,} bytes received")
                progress(f"{self.name}: {received / 2**20:.0f} of {expected / 2**20:.0f} MiB")
        if expected and received != expected:
            raise self._failed(f"cut short, received {received:,} of {expected:,} bytes")
        if digest.hexdigest() != self.sha256:
            raise self._failed(f"sha256 is {digest.hexdigest()}, not {self.sha256}")

    def _failed(self, reason: object) -> Unsupported:
        return Unsupported(
            f"download of {self.url}: {reason}: allowed: a network that reaches it, or the file below VOCABENCH_DATA"
        )
