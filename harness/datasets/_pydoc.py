"""Text that is there without a network: the docstrings of installed packages."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from harness.datasets import _files
from harness.datasets._files import Progress
from harness.datasets._source import SPLITS, Text

_FORMAT = 4  # raised when the same sources would give other text
_ROOT = Path(__file__).resolve().parents[2]
_STANDARD_LIBRARY = "python"
# Tests, vendored copies, and what belongs to other packages hold no documentation, or somebody else's.
_SKIPPED_FOLDERS = {
    "__pycache__",
    "_pyrepl",
    "_vendor",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "test",
    "testing",
    "tests",
    "turtledemo",
    "vendor",
}


@dataclass(frozen=True)
class Docstrings:
    """Docstrings of packages as a corpus, in three splits by source file.

    The split of a file hangs on its name, nine in ten for training, so that no paragraph of a file that is scored has
    been trained on. Paragraphs that occur twice are kept once. Packages that are not installed are left out; which
    ones there were, and their versions, is part of the text.

    Attributes:
        name: Of the dataset.
        packages: As they are imported; "python" is the standard library.
        licence: Of the text.
    """

    name: str
    packages: Sequence[str]
    licence: str

    def text(self, progress: Progress) -> Text:
        versions = self._versions()
        folder = _files.filled(self._folder(versions), lambda scratch: _build(versions, scratch, progress))
        files = {split: folder / f"{split}.txt" for split in SPLITS}
        return Text(self.name, files, "lines", self.licence, min_count=3, versions=versions)

    def is_here(self) -> bool:
        return _files.is_whole(self._folder(self._versions()))

    def _folder(self, versions: dict[str, str]) -> Path:
        key = hashlib.sha256(json.dumps([_FORMAT, versions]).encode()).hexdigest()[:16]
        return _files.cache_folder() / "texts" / f"{self.name}-{key}"

    def _versions(self) -> dict[str, str]:
        """The packages that are installed here, and their versions."""
        found = {}
        distributions = metadata.packages_distributions() if set(self.packages) != {_STANDARD_LIBRARY} else {}
        for package in self.packages:
            if package == _STANDARD_LIBRARY:
                found[package] = ".".join(map(str, sys.version_info[:3]))
            elif package in distributions:
                found[package] = metadata.version(distributions[package][0])
        return found


def _build(versions: dict[str, str], folder: Path, progress: Progress) -> None:
    sources = [source for package in versions for source in _sources(package)]
    seen: set[bytes] = set()
    with ExitStack() as stack:
        outputs = {
            split: stack.enter_context((folder / f"{split}.txt").open("w", encoding="utf-8")) for split in SPLITS
        }
        results = _paragraphs([str(path) for _, path in sources], folder / "sources", stack)
        for number, ((name, _), found) in enumerate(zip(sources, results, strict=True)):
            if number % 500 == 0:
                progress(f"reading docstrings: {number:,} of {len(sources):,} files")
            for paragraph in found:
                digest = hashlib.sha256(paragraph.encode()).digest()[:16]
                if digest not in seen:
                    seen.add(digest)
                    outputs[_split_of(name)].write(paragraph + "\n")
    (folder / "sources").unlink()


def _paragraphs(paths: list[str], listing: Path, stack: ExitStack) -> Iterator[list[str]]:
    """The paragraphs of each file, in order, read by as many processes as there are cores.

    Programs of their own rather than a process pool, which would run the caller's main script again in each of them.
    """
    listing.write_text("\n".join(paths), encoding="utf-8")
    workers = []
    step = os.cpu_count() or 1
    for first in range(step):
        command = [sys.executable, "-m", "harness.datasets._docstrings", str(listing), str(first), str(step)]
        worker = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, encoding="utf-8")
        # Last in, first out: killed, so that waiting for it ends at once, then waited for.
        stack.enter_context(worker)
        stack.callback(worker.kill)
        workers.append(worker)
    for number in range(len(paths)):
        worker = workers[number % step]
        assert worker.stdout is not None
        if not (line := worker.stdout.readline()):
            raise RuntimeError(f"the process that reads {paths[number]} ended with {worker.wait()}")
        yield json.loads(line)


def _sources(package: str) -> Iterator[tuple[str, Path]]:
    """(name that does not depend on where it is installed, path) of each module, in a fixed order."""
    if package == _STANDARD_LIBRARY:
        roots = [Path(sysconfig.get_path("stdlib"))]
    else:
        spec = importlib.util.find_spec(package)
        roots = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            inner = path.relative_to(root)
            if not _SKIPPED_FOLDERS & set(inner.parts[:-1]) and not inner.name.startswith("test_"):
                yield f"{package}/{inner.as_posix()}", path


def _split_of(name: str) -> str:
    draw = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32
    return "train" if draw < 0.9 else "valid" if draw < 0.95 else "test"
