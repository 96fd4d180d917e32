"""Source files of installed packages, read in parallel by a program."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vocabench.harness.datasets.shared.dataset import Progress
from vocabench.harness.datasets.shared.packages import STANDARD_LIBRARY
from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.impls import cpus

# Tests and vendored copies: no documentation, or that of other packages.
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


def read(
    program: str, packages: Sequence[str], folder: Path, progress: Progress, stack: ExitStack
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the name of each source file, as `source_files` gives it, and what the program prints for it.

    Args:
        program: Module with the command line and output of `text.docstrings`.
        packages: Import names of the packages.
        folder: Folder for a temporary list of the files.
        progress: Called with a line of text now and then.
        stack: Ends the processes on exit.
    """
    files = [file for package in packages for file in source_files(package)]
    listing = folder / "sources"
    results = _results(program, [str(path) for _, path in files], listing, stack)
    for number, ((name, _), result) in enumerate(zip(files, results, strict=True)):
        if number % 500 == 0:
            progress(f"reading docstrings: {number:,} of {len(files):,} files")
        yield name, result
    listing.unlink()


def source_files(package: str) -> Iterator[tuple[str, Path]]:
    """Yield a name that does not depend on the place of installation, and the path, of each module in a fixed order."""
    if package == STANDARD_LIBRARY:
        roots = [Path(sysconfig.get_path("stdlib"))]
    else:
        spec = importlib.util.find_spec(package)
        roots = [Path(location) for location in (spec and spec.submodule_search_locations) or ()]
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            relative = path.relative_to(root)
            if not _SKIPPED_FOLDERS & set(relative.parts[:-1]) and not relative.name.startswith("test_"):
                yield f"{package}/{relative.as_posix()}", path


def _results(program: str, paths: list[str], listing: Path, stack: ExitStack) -> Iterator[list[Any]]:
    """Yield what the program prints for each file, in order, with one process for each usable CPU.

    A process pool would run the caller's main script again in each of its processes.
    """
    listing.write_text("\n".join(paths), encoding="utf-8")
    workers = []
    count = cpus.usable()
    for first in range(count):
        command = [sys.executable, "-m", program, str(listing), str(first), str(count)]
        worker = subprocess.Popen(command, cwd=IMPORT_ROOT, stdout=subprocess.PIPE, encoding="utf-8")
        # Callbacks run in reverse order: the worker is killed first, so that waiting for it ends at once.
        stack.enter_context(worker)
        stack.callback(worker.kill)
        workers.append(worker)
    for number, path in enumerate(paths):
        worker = workers[number % count]
        assert worker.stdout is not None
        if not (line := worker.stdout.readline()):
            raise RuntimeError(f"the process that reads {path} ended with {worker.wait()}")
        yield json.loads(line)


def split_of(name: str) -> str:
    """Return the split of a source file by its name: nine in ten are for training."""
    draw = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32
    return "train" if draw < 0.9 else "valid" if draw < 0.95 else "test"
