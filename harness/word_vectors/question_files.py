"""Questions that score word vectors, read from files: word2vec's questions-words.txt and WordSim-353."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vocabench.impls.errors import BadInput

Question = tuple[str, str, str, str]


@dataclass(frozen=True)
class Section:
    """Analogy questions of one kind.

    Attributes:
        questions: Words a, b, c and d, in lower case, such that a is to b as c is to d.
    """

    name: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class ScoredPair:
    """Two words, in lower case, and how similar they are in the judgement of people, on any scale."""

    first: str
    second: str
    score: float


def read_analogies(path: Path) -> list[Section]:
    """Read lines of four words. Lines of the form ": name" start a section.

    Raises:
        BadInput: A line has another form, or the file is not UTF-8.
    """
    questions: dict[str, list[Question]] = {}
    section = ""
    for number, line in _lines(path):
        if line.startswith(":"):
            section = line[1:].strip()
            continue
        words = _lower(line).split()
        if len(words) != 4:
            raise BadInput(f"{path.name}, line {number}: {len(words)} words: allowed: four, or ': name of a section'")
        a, b, c, d = words
        questions.setdefault(section, []).append((a, b, c, d))
    return [Section(name, tuple(asked)) for name, asked in questions.items()]


def read_similarity(path: Path) -> list[ScoredPair]:
    """Read lines of the form "word word score", separated by tabs, commas or spaces.

    A first line that does not end in a number is a heading; lines with # are comments.

    Raises:
        BadInput: A line has another form, or the file is not UTF-8.
    """
    pairs: list[ScoredPair] = []
    lines = [(number, re.split(r"[\s,;]+", line)) for number, line in _lines(path) if not line.startswith("#")]
    for place, (number, parts) in enumerate(lines):
        try:
            score = float(parts[2])
        except (IndexError, ValueError):
            if place == 0:
                continue
            raise BadInput(
                f"{path.name}, line {number}: {' '.join(parts)!r}: allowed: two words and a number"
            ) from None
        pairs.append(ScoredPair(_lower(parts[0]), _lower(parts[1]), score))
    return pairs


def _lower(text: str) -> str:
    """Return text in lower case and Unicode NFC, as the words of a vocabulary are."""
    return unicodedata.normalize("NFC", text.lower())


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line numbers, from 1, and the non-empty lines."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path.name}: byte {error.start} is no UTF-8: allowed: UTF-8 text") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield number, line.strip()
