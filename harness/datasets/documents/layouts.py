"""The layouts of users' own documents, and their lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vocabench.harness.datasets.shared import utf8_lines
from vocabench.harness.datasets.shared.dataset import DocumentFiles
from vocabench.impls.errors import BadInput

SPLITS = ("train", "test")

_LICENCE = "the user's own"


@dataclass(frozen=True)
class Document:
    """A document of a file.

    Attributes:
        line: Number of its line, from 1.
        text: Its text.
        label: Its label.
    """

    line: int
    text: str
    label: str


def is_path(name: str) -> bool:
    """Return whether `name` is a path rather than the name of a dataset."""
    return "/" in name or name.endswith(".jsonl") or Path(name).exists()


def at_path(name: str) -> DocumentFiles:
    """Return the documents at a path.

    - FILE.jsonl: one document a line, {"text": TEXT, "label": LABEL}, where a label is text or a whole number; further
      keys are ignored. About one in five documents is held out for testing.
    - A folder with train.jsonl and test.jsonl.

    Raises:
        BadInput: The path does not exist, or is neither of these.
    """
    path = Path(name)
    if path.is_dir():
        files = {split: path / f"{split}.jsonl" for split in SPLITS}
        for file in files.values():
            if not file.is_file():
                raise BadInput(f"folder {name}: no {file.name}: allowed: train.jsonl and test.jsonl")
        return DocumentFiles(path.resolve().name, files, "english", _LICENCE)
    if path.suffix != ".jsonl" or not path.is_file():
        raise BadInput(f"documents {name}: no such file: allowed: a .jsonl file, or a folder with one for each split")
    return DocumentFiles(path.stem, {"train": path}, "english", _LICENCE, holds_out=True)


def read(path: Path) -> Iterator[Document]:
    """Yield the documents of a JSON lines file.

    Raises:
        BadInput: A line is empty, not UTF-8, or not an object with a text and a label; the message names the line.
    """
    for number, line in utf8_lines.numbered(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise _wrong(path, number, "not JSON") from None
        if not isinstance(record, dict):
            raise _wrong(path, number, "not an object")
        for key in ("text", "label"):
            if key not in record:
                raise _wrong(path, number, f"no {key}")
        text, label = record["text"], record["label"]
        if isinstance(label, int) and not isinstance(label, bool):
            label = str(label)
        if not utf8_lines.is_text(text):
            raise _wrong(path, number, "its text is empty or not text")
        if not utf8_lines.is_text(label):
            raise _wrong(path, number, "its label is empty, or neither text nor a whole number")
        yield Document(number, text.strip(), str(label).strip())


def line_of(text: str, label: str) -> bytes:
    """Return a document as a line of a JSON lines file."""
    record = {"text": text, "label": label}
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _wrong(path: Path, number: int, problem: str) -> BadInput:
    return BadInput(f'{path}, line {number:,}: {problem}: allowed: {{"text": TEXT, "label": LABEL}}')
