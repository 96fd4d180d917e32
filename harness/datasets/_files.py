"""Where text lies: the cache, the user's own folder, and downloads that are checked before anyone reads them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from impls.errors import BadInput

Progress = Callable[[str], None]

_TIMEOUT_SECONDS = 60.0
_CHUNK = 1 << 20


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


def sha256_of(*paths: Path) -> str:
    """Of the files' contents, one after the other, with their lengths between them."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.stat().st_size.to_bytes(8, "little"))
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def finished_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `target` in one step when it is complete.

    Whoever is killed on the way leaves no half-filled `target`; of two processes that fill it at once, the first wins.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise BadInput(
            f"cache folder {target.parent}: {error.strerror}: allowed: a place that can be written"
        ) from error
    try:
        yield scratch
        try:
            scratch.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    except OSError as error:
        raise BadInput(f"cache folder {target}: {error.strerror or error}: allowed: free space to write in") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def download(url: str, sha256: str, target: Path, progress: Progress) -> Path:
    """Fetch `url` to `target`, unless it is there, and check it first.

    Raises:
        BadInput: The server does not answer, or what came is cut short or has another checksum.
    """
    if target.is_file():
        return target
    with finished_folder(target.parent / f"{target.name}.d") as scratch:
        got = scratch / target.name
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer, got.open("wb") as file:
                expected = int(answer.headers.get("Content-Length") or 0)
                received = 0
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    received += len(chunk)
                    progress(f"{target.name}: {received / 2**20:.0f} of {expected / 2**20:.0f} MiB")
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", error)
            raise BadInput(
                f"download of {url}: {reason}: allowed: a network, or the file below VOCABENCH_DATA"
            ) from error
        if expected and received != expected:
            raise BadInput(f"download of {url}: {received} bytes of {expected}: allowed: the whole file; try again")
        found = hashlib.sha256(got.read_bytes()).hexdigest()
        if found != sha256:
            raise BadInput(f"download of {url}: sha256 {found}: allowed: {sha256}")
        os.replace(got, target)
    shutil.rmtree(target.parent / f"{target.name}.d", ignore_errors=True)
    return target


def extract(archive: Path, members: dict[str, str], folder: Path) -> None:
    """Write the named members of a zip file to the given names in `folder`: nothing else, and nowhere else.

    Raises:
        BadInput: The archive is damaged or lacks a member.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            for member, name in members.items():
                with opened.open(member) as source, (folder / Path(name).name).open("wb") as target:
                    shutil.copyfileobj(source, target, _CHUNK)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise BadInput(f"archive {archive}: {error}: allowed: a whole zip file with {', '.join(members)}") from error
