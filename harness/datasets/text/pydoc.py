"""Text that is there without a network: the docstrings of installed packages."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from vocabench.harness.datasets.shared.local_files import Progress
from vocabench.harness.datasets.shared.source import SPLITS, Text
from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.impls import cache_folder, cpus

_FORMAT = 4  # raised when the same sources would give other text
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
        place = built_folder(self.name, _FORMAT, versions)
        folder = cache_folder.filled(place, lambda scratch: _build(versions, scratch, progress))
        files = {split: folder / f"{split}.txt" for split in SPLITS}
        return Text(self.name, files, "lines", self.licence, min_count=3, versions=versions)

    def is_here(self) -> bool:
        return cache_folder.is_whole(built_folder(self.name, _FORMAT, self._versions()))

    def _versions(self) -> dict[str, str]:
        return installed_versions(self.packages)


def installed_versions(packages: Sequence[str]) -> dict[str, str]:
    """Those of the packages that are installed here, and their versions."""
    found = {}
    distributions = metadata.packages_distributions() if set(packages) != {_STANDARD_LIBRARY} else {}
    for package in packages:
        if package == _STANDARD_LIBRARY:
            found[package] = ".".join(map(str, sys.version_info[:3]))
        elif package in distributions:
            found[package] = metadata.version(distributions[package][0])
    return found


def built_folder(name: str, form: int, versions: Mapping[str, str], room: str = "texts") -> Path:
    """Where what is built from these versions in this form is kept, in a room of the cache."""
    key = hashlib.sha256(json.dumps([form, versions]).encode()).hexdigest()[:16]
    return cache_folder.path() / room / f"{name}-{key}"


def _build(versions: Mapping[str, str], folder: Path, progress: Progress) -> None:
    seen: set[bytes] = set()
    with ExitStack() as stack:
        outputs = {
            split: stack.enter_context((folder / f"{split}.txt").open("w", encoding="utf-8")) for split in SPLITS
        }
        for split, found in from_sources(
            "vocabench.harness.datasets.text.docstrings", versions, folder, progress, stack
        ):
            for paragraph in found:
                if is_new(paragraph, seen):
                    outputs[split].write(paragraph + "\n")


def is_new(text: str, seen: set[bytes]) -> bool:
    """Whether `text` has not come before; it has from now on."""
    digest = hashlib.sha256(text.encode()).digest()[:16]
    before = len(seen)
    seen.add(digest)
    return len(seen) > before


def from_sources(
    program: str, versions: Mapping[str, str], folder: Path, progress: Progress, stack: ExitStack
) -> Iterator[tuple[str, list[Any]]]:
    """(split, what `program` finds in it) of each source file of these packages, in a fixed order.

    Args:
        program: A module that is run as `docstrings` is, and prints as it does.
        versions: The packages are its keys.
        folder: For a list of the files, which is gone in the end.
        progress: Called with a line of text now and then.
        stack: Ends the processes that read.
    """
    sources = [source for package in versions for source in _sources(package)]
    listing = folder / "sources"
    results = _results(program, [str(path) for _, path in sources], listing, stack)
    for number, ((name, _), found) in enumerate(zip(sources, results, strict=True)):
        if number % 500 == 0:
            progress(f"reading docstrings: {number:,} of {len(sources):,} files")
        yield _split_of(name), found
    listing.unlink()


def _results(program: str, paths: list[str], listing: Path, stack: ExitStack) -> Iterator[list[Any]]:
    """What the program finds in each file, in order, run by as many processes as there are CPUs for this one.

    Programs of their own rather than a process pool, which would run the caller's main script again in each of them.
    """
    listing.write_text("\n".join(paths), encoding="utf-8")
    workers = []
    step = cpus.usable()
    for first in range(step):
        command = [sys.executable, "-m", program, str(listing), str(first), str(step)]
        worker = subprocess.Popen(command, cwd=IMPORT_ROOT, stdout=subprocess.PIPE, encoding="utf-8")
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
