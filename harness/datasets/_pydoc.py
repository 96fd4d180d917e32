"""English text from the docstrings of installed packages, read with `ast` and never imported."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import json
import multiprocessing
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path

from harness.datasets import _files, _text
from harness.datasets._corpus import SPLITS, Text
from harness.datasets._files import Progress

_FORMAT = 1  # raised when the same sources would give other text
_STANDARD_LIBRARY = "python"
# Tests, vendored copies and generated stubs hold no documentation, or somebody else's.
_SKIPPED_FOLDERS = {
    "test",
    "tests",
    "testing",
    "idlelib",
    "lib2to3",
    "site-packages",
    "__pycache__",
    "_vendor",
    "vendor",
}

_MARKUP = re.compile(r":[a-z:+-]+:(?=`)|[`*|]|\\\w*")
_JOINED = re.compile(r"(?<=\w)[_./](?=\w)")
_TABLE = re.compile(r"^\s*(?:[=~^+#-][\s=~^+#|-]{2,}|\|.*\||\+[-=+]+)\s*$", re.MULTILINE)
_FEWEST_WORDS = 6


def text(name: str, packages: Sequence[str], progress: Progress) -> Text:
    """The docstrings of `packages` (and the standard library as "python"), in three splits by source file.

    The split of a file hangs on its name, nine in ten for training, so that no paragraph of a file that is scored has
    been trained on. Paragraphs that occur twice are kept once.
    """
    versions = _versions(packages)
    folder = _folder(name, versions)
    if not folder.is_dir():
        with _files.finished_folder(folder) as scratch:
            _build(versions, scratch, progress)
    files = {split: folder / f"{split}.txt" for split in SPLITS}
    return Text(name, files, "lines", "docstrings: the licence of each package", min_count=3, versions=versions)


def is_here(name: str, packages: Sequence[str]) -> bool:
    return _folder(name, _versions(packages)).is_dir()


def _folder(name: str, versions: dict[str, str]) -> Path:
    key = hashlib.sha256(json.dumps([_FORMAT, sorted(versions.items())]).encode()).hexdigest()[:16]
    return _files.cache_folder() / "texts" / f"{name}-{key}"


def _versions(packages: Sequence[str]) -> dict[str, str]:
    """The packages that are installed here, and their versions."""
    found = {}
    for package in packages:
        if package == _STANDARD_LIBRARY:
            found[package] = ".".join(map(str, sys.version_info[:3]))
        elif importlib.util.find_spec(package) is not None:
            distributions = metadata.packages_distributions().get(package, [package])
            found[package] = metadata.version(distributions[0])
    return found


def _build(versions: dict[str, str], folder: Path, progress: Progress) -> None:
    sources = [source for package in versions for source in _sources(package)]
    seen: set[bytes] = set()
    outputs = {split: (folder / f"{split}.txt").open("w", encoding="utf-8") for split in SPLITS}
    # Spawned, not forked: whoever asks for text may have threads running.
    workers = ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn"))
    with workers:
        paths = [str(path) for _, path in sources]
        results = workers.map(paragraphs_of_file, paths, chunksize=64)
        for number, ((name, _), found) in enumerate(zip(sources, results, strict=True)):
            if number % 500 == 0:
                progress(f"reading docstrings: {number} of {len(sources)} files")
            for paragraph in found:
                digest = hashlib.sha256(paragraph.encode()).digest()[:16]
                if digest not in seen:
                    seen.add(digest)
                    outputs[_split_of(name)].write(paragraph + "\n")
    for file in outputs.values():
        file.close()


def _sources(package: str) -> Iterable[tuple[str, Path]]:
    """(name that does not depend on where it is installed, path) of each module, in a fixed order."""
    if package == _STANDARD_LIBRARY:
        roots = [Path(sysconfig.get_path("stdlib"))]
    else:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        roots = [Path(place) for place in spec.submodule_search_locations or ()]
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            inner = path.relative_to(root)
            if not _SKIPPED_FOLDERS & set(inner.parts[:-1]) and not inner.name.startswith("test_"):
                yield f"{package}/{inner.as_posix()}", path


def _split_of(name: str) -> str:
    draw = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32
    return "train" if draw < 0.9 else "valid" if draw < 0.95 else "test"


def paragraphs_of_file(path: str) -> list[str]:
    """The English paragraphs of a module's docstrings, words with spaces between; none where it does not parse."""
    try:
        source = Path(path).read_text(encoding="utf-8")
        if '"""' not in source and "'''" not in source:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes
            tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                found += paragraphs(inspect.cleandoc(docstring))
    return found


def paragraphs(docstring: str) -> list[str]:
    """The paragraphs that are English: no code, doctest, table, directive or bare list of names."""
    found = []
    for block in re.split(r"\n\s*\n", docstring):
        if ">>>" in block or _TABLE.search(block) or block.lstrip().startswith(("..", "$", "%", "#", "@")):
            continue
        if _looks_like_code(block):
            continue
        words = _text.words_of(_JOINED.sub(" ", _MARKUP.sub("", block)))
        if sum(word[0].isalpha() for word in words) >= _FEWEST_WORDS:
            found.append(" ".join(words))
    return found


def _looks_like_code(block: str) -> bool:
    """Brackets, operators and underscores stand in prose too, but not in every second word."""
    pieces = block.split()
    odd = sum(any(sign in piece for sign in "=(){}[]<>_/\\$@|&%+*") for piece in pieces)
    return odd > 0.3 * len(pieces)
