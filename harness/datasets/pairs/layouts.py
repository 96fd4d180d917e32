"""The layouts that pairs of source and summary come in, and their lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from vocabench.harness.datasets.shared import record_lines
from vocabench.harness.datasets.shared.source import SPLITS, PairText
from vocabench.impls.errors import BadInput

_LICENCE = "the user's own"

# A split's files, its source and its title but for JSON lines: our own names, then those of Rush et al. 2015, whose
# archive has two folders.
_NAMES = (
    ("{split}.jsonl",),
    ("{split}.source.txt", "{split}.title.txt"),
    ("{split}.article.filter.txt", "{split}.title.filter.txt"),
    ("{split}.article.txt", "{split}.title.txt"),
    ("train/{split}.article.filter.txt", "train/{split}.title.filter.txt"),
    ("train/{split}.article.txt", "train/{split}.title.txt"),
)
_TEST_INPUT = ("input.txt", "Giga/input.txt")  # its references, of any number, are task1_ref0.txt and on


def is_path(name: str) -> bool:
    return "/" in name or "," in name or name.endswith((".jsonl", ".txt")) or Path(name).exists()


def own(name: str) -> PairText:
    """The pairs at a path.

    - SOURCE,TITLE: two files of the same number of lines. Of a single set of pairs the last 5 % are held out, half for
      validation and half for testing.
    - FILE.jsonl: a line a pair, {"text": TEXT, "summary": TEXT} or {"text": TEXT, "summaries": [TEXT, ...]}, with any
      further keys; held out as above.
    - A folder with the splits there are: train.jsonl and so on; train.source.txt with train.title.txt, and so on;
      Gigaword as Rush et al. (2015) give it out ({train,valid}.article.filter.txt or .article.txt with their titles;
      for testing input.txt with task1_ref0.txt); DUC-2004 (input.txt with task1_ref0.txt to task1_ref3.txt).

    Raises:
        BadInput: Nothing is there, or a source has no summaries.
    """
    if "," in name and not Path(name).exists():
        files = tuple(Path(part) for part in name.split(","))
        if len(files) != 2:
            raise BadInput(f"pairs {name}: {len(files)} files: allowed: SOURCE,TITLE")
        _check(*files)
        return PairText(files[0].stem, {"train": files}, _LICENCE, holds_out=True)
    path = Path(name)
    if path.is_dir():
        return PairText(path.resolve().name, _of_folder(path), _LICENCE)
    if path.suffix != ".jsonl":
        raise BadInput(f"pairs {name}: no folder: allowed: a folder, a .jsonl file, or SOURCE,TITLE")
    _check(path)
    return PairText(path.stem, {"train": (path,)}, _LICENCE, holds_out=True)


def _check(*files: Path) -> None:
    for path in files:
        if not path.is_file():
            raise BadInput(f"pairs {path}: no such file: allowed: a file that can be read")


def _of_folder(folder: Path) -> dict[str, tuple[Path, ...]]:
    found = {}
    for split in SPLITS:
        for names in _NAMES:
            paths = tuple(folder / name.format(split=split) for name in names)
            if paths[0].is_file():
                _check(*paths)
                found[split] = paths
                break
    tests = [folder / name for name in _TEST_INPUT if (folder / name).is_file()]
    if tests and "test" not in found:
        found["test"] = (tests[0], *_references(tests[0].parent))
    if not found:
        raise BadInput(
            f"folder {folder}: no pairs: allowed: train.jsonl, train.source.txt with train.title.txt, "
            "train.article.txt with train.title.txt, input.txt with task1_ref0.txt, or the like"
        )
    return found


def _references(folder: Path) -> list[Path]:
    """task1_ref0.txt and on, without a gap."""
    count = max(1, sum(1 for _ in folder.glob("task1_ref*.txt")))
    files = [folder / f"task1_ref{number}.txt" for number in range(count)]
    for path in files:
        if not path.is_file():
            raise BadInput(f"pairs {path}: missing reference: allowed: task1_ref0.txt and on, without a gap")
    return files


def read(paths: tuple[Path, ...]) -> Iterator[tuple[str, list[str]]]:
    """The pairs of a JSON lines file, or of a source file and one file or more of references.

    Raises:
        BadInput: As `collection.load`, with file and line.
    """
    if len(paths) == 1:
        for number, line in record_lines.numbered(paths[0]):
            yield _of_json(paths[0], number, line)
        return
    with ExitStack() as stack:
        sides = [stack.enter_context(path.open("rb")) for path in paths]
        offsets = [0] * len(paths)
        number = 0
        while True:
            number += 1
            raw = [side.readline() for side in sides]
            if not any(raw):
                return
            _check_ends(paths, number, raw)
            source, *references = (
                record_lines.text_of(path, number, each, offset)
                for path, each, offset in zip(paths, raw, offsets, strict=True)
            )
            yield source, references
            offsets = [offset + len(each) for offset, each in zip(offsets, raw, strict=True)]


def _check_ends(paths: tuple[Path, ...], number: int, raw: list[bytes]) -> None:
    """All files end at the same line."""
    for path, line in zip(paths, raw, strict=True):
        if not line:
            longer = next(other for other, each in zip(paths, raw, strict=True) if each)
            raise BadInput(
                f"{path}, line {number:,}: the file has ended, {longer.name} has not: allowed: as many lines in each"
            )


def _of_json(path: Path, number: int, line: str) -> tuple[str, list[str]]:
    def wrong(what: str) -> BadInput:
        return BadInput(
            f'{path}, line {number:,}: {what}: allowed: {{"text": TEXT, "summary": TEXT}} or '
            '{"text": TEXT, "summaries": [TEXT, ...]}'
        )

    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise wrong("no JSON") from None
    if not isinstance(record, dict):
        raise wrong("no object")
    if not record_lines.is_text(record.get("text")):
        raise wrong("no text")
    if ("summary" in record) == ("summaries" in record):
        raise wrong("summary and summaries" if "summary" in record else "no summary and no summaries")
    summaries = [record["summary"]] if "summary" in record else record["summaries"]
    if not isinstance(summaries, list) or not summaries or not all(map(record_lines.is_text, summaries)):
        raise wrong("a summary is missing, empty or no text")
    return record["text"].strip(), [each.strip() for each in summaries]
