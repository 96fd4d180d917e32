"""The layouts in which pairs of source and summary come, and their lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from vocabench.harness.datasets.shared import utf8_lines
from vocabench.harness.datasets.shared.dataset import SPLITS, PairFiles
from vocabench.impls.errors import BadInput

_LICENCE = "the user's own"

# Files of a split: JSON lines, or a source and a title. First come our own names, then those of Rush et al. 2015, whose
# archive has two folders.
_NAMES = (
    ("{split}.jsonl",),
    ("{split}.source.txt", "{split}.title.txt"),
    ("{split}.article.filter.txt", "{split}.title.filter.txt"),
    ("{split}.article.txt", "{split}.title.txt"),
    ("train/{split}.article.filter.txt", "train/{split}.title.filter.txt"),
    ("train/{split}.article.txt", "train/{split}.title.txt"),
)
_TEST_INPUT = ("input.txt", "Giga/input.txt")  # the references are task1_ref0.txt, task1_ref1.txt, ...


def is_path(name: str) -> bool:
    """Return whether `name` is a path, or two, rather than the name of a dataset."""
    return "/" in name or "," in name or name.endswith((".jsonl", ".txt")) or Path(name).exists()


def at_path(name: str) -> PairFiles:
    """Return the pairs at a path.

    - SOURCE,TITLE: two files with the same number of lines. The last 5 % of the pairs are held out, half for
      validation and half for testing.
    - FILE.jsonl: one pair a line, {"text": TEXT, "summary": TEXT} or {"text": TEXT, "summaries": [TEXT, ...]}; further
      keys are ignored. Pairs are held out as above.
    - A folder with any of the splits: train.jsonl etc.; train.source.txt with train.title.txt etc.; Gigaword as
      published by Rush et al. (2015) ({train,valid}.article.filter.txt or .article.txt with their titles, and
      input.txt with task1_ref0.txt for testing); DUC-2004 (input.txt with task1_ref0.txt to task1_ref3.txt).

    Raises:
        BadInput: The path does not exist, or a source has no summaries.
    """
    if "," in name and not Path(name).exists():
        files = tuple(Path(part) for part in name.split(","))
        if len(files) != 2:
            raise BadInput(f"pairs {name}: {len(files)} files: allowed: SOURCE,TITLE")
        _check(*files)
        return PairFiles(files[0].stem, {"train": files}, _LICENCE, holds_out=True)
    path = Path(name)
    if path.is_dir():
        return PairFiles(path.resolve().name, _in_folder(path), _LICENCE)
    if path.suffix != ".jsonl":
        raise BadInput(f"pairs {name}: no folder: allowed: a folder, a .jsonl file, or SOURCE,TITLE")
    _check(path)
    return PairFiles(path.stem, {"train": (path,)}, _LICENCE, holds_out=True)


def _check(*files: Path) -> None:
    for path in files:
        if not path.is_file():
            raise BadInput(f"pairs {path}: no such file: allowed: a file that can be read")


def _in_folder(folder: Path) -> dict[str, tuple[Path, ...]]:
    files = {}
    for split in SPLITS:
        for names in _NAMES:
            paths = tuple(folder / name.format(split=split) for name in names)
            if paths[0].is_file():
                _check(*paths)
                files[split] = paths
                break
    tests = [folder / name for name in _TEST_INPUT if (folder / name).is_file()]
    if tests and "test" not in files:
        files["test"] = (tests[0], *_references(tests[0].parent))
    if not files:
        raise BadInput(
            f"folder {folder}: no pairs: allowed: train.jsonl, train.source.txt with train.title.txt, "
            "train.article.txt with train.title.txt, input.txt with task1_ref0.txt, or the like"
        )
    return files


def _references(folder: Path) -> list[Path]:
    """Return task1_ref0.txt, task1_ref1.txt, ..., without gaps."""
    count = max(1, sum(1 for _ in folder.glob("task1_ref*.txt")))
    files = [folder / f"task1_ref{number}.txt" for number in range(count)]
    for path in files:
        if not path.is_file():
            raise BadInput(f"pairs {path}: missing reference: allowed: task1_ref0.txt and on, without a gap")
    return files


def read(paths: tuple[Path, ...]) -> Iterator[tuple[str, list[str]]]:
    """Yield the pairs of a JSON lines file, or of a source file and one or more files of references.

    Raises:
        BadInput: See `summary_pairs.load`; the message names the file and the line.
    """
    if len(paths) == 1:
        for number, line in utf8_lines.numbered(paths[0]):
            yield _from_json(paths[0], number, line)
        return
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in paths]
        offsets = [0] * len(paths)
        number = 0
        while True:
            number += 1
            lines = [file.readline() for file in files]
            if not any(lines):
                return
            _check_ends(paths, number, lines)
            source, *references = (
                utf8_lines.decode(path, number, line, offset)
                for path, line, offset in zip(paths, lines, offsets, strict=True)
            )
            yield source, references
            offsets = [offset + len(line) for offset, line in zip(offsets, lines, strict=True)]


def _check_ends(paths: tuple[Path, ...], number: int, lines: list[bytes]) -> None:
    """Check that no file ends before the others."""
    for path, line in zip(paths, lines, strict=True):
        if not line:
            longer = next(other for other, other_line in zip(paths, lines, strict=True) if other_line)
            raise BadInput(
                f"{path}, line {number:,}: the file has ended, {longer.name} has not: allowed: as many lines in each"
            )


def _from_json(path: Path, number: int, line: str) -> tuple[str, list[str]]:
    def wrong(problem: str) -> BadInput:
        return BadInput(
            f'{path}, line {number:,}: {problem}: allowed: {{"text": TEXT, "summary": TEXT}} or '
            '{"text": TEXT, "summaries": [TEXT, ...]}'
        )

    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise wrong("not JSON") from None
    if not isinstance(record, dict):
        raise wrong("not an object")
    if not utf8_lines.is_text(record.get("text")):
        raise wrong("no text")
    if ("summary" in record) == ("summaries" in record):
        raise wrong("summary and summaries" if "summary" in record else "no summary and no summaries")
    summaries = [record["summary"]] if "summary" in record else record["summaries"]
    if not isinstance(summaries, list) or not summaries or not all(map(utf8_lines.is_text, summaries)):
        raise wrong("a summary is missing, empty or not text")
    return record["text"].strip(), [summary.strip() for summary in summaries]
