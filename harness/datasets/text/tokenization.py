"""Tokenization rules from text to words, applied to a stream so that no file is ever held in memory as a whole."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vocabench.harness.datasets.shared import utf8_lines
from vocabench.impls.errors import BadInput

EOS, UNK, NUMBER = "<eos>", "<unk>", "<num>"
SYMBOLS = UNK, EOS  # words of text that is tokenized already, which no other text contains

_CHUNK_CHARACTERS = 1 << 21  # tens of megabytes as words

# Combining marks, such as the vowel signs of Devanagari: all characters of Unicode's category M are in these planes.
_PLACES_OF_MARKS = (*range(0x20000), *range(0xE0100, 0xE01F0))
_MARK = "[" + "".join(chr(place) for place in _PLACES_OF_MARKS if unicodedata.category(chr(place))[0] == "M") + "]"
_A_MARK = re.compile(_MARK)


def _words(letters: str) -> re.Pattern[str]:
    """Return a pattern for letters with inner apostrophes, numbers, and punctuation that ends or joins clauses."""
    return re.compile(rf"{letters}(?:'{letters})*|\d+(?:[.,]\d+)*|[.,;:!?]")


_WORD, _WORD_WITH_MARKS = _words(r"[^\W\d_]+"), _words(rf"(?:[^\W\d_]{_MARK}*)+")


def words_of(text: str) -> list[str]:
    """Return lower-case words, `<num>` for numbers, and . , ; : ! ? as separate words; drop everything else.

    Letters are those of any script, each with the combining marks that follow it.
    """
    text, pattern = text.lower().replace("\u2019", "'"), _WORD
    if _A_MARK.search(text):
        text, pattern = unicodedata.normalize("NFC", text), _WORD_WITH_MARKS
    return [NUMBER if match[0].isdigit() else match for match in pattern.findall(text)]


@dataclass(frozen=True)
class Rule:
    """A tokenization rule.

    Attributes:
        split: Function from a text to its words.
        ends_lines: Lines that end with <eos>: "none", "all", or "filled" for those that contain a word. A line that
            ends with <eos> already gets no second one.
    """

    split: Callable[[str], list[str]]
    ends_lines: str


RULES = {
    "english": Rule(words_of, "filled"),
    "lines": Rule(str.split, "all"),  # already tokenized, as WikiText and PTB
    "whitespace": Rule(str.split, "none"),  # already tokenized, and lines have no meaning, as in text8
}


def tokens(path: Path, rule: str) -> Iterator[list[str]]:
    """Yield the words of a file, a few megabytes at a time.

    Raises:
        BadInput: The file cannot be read, is not UTF-8 (the message names the byte), or has no white space.
    """
    split, ends_lines = RULES[rule].split, RULES[rule].ends_lines
    last = ""  # word of the line that the next piece continues
    is_open = False  # whether that line needs an <eos> at the end of the file
    for piece in _pieces(path):
        if ends_lines == "none":
            yield split(piece)
            continue
        batch: list[str] = []
        *whole, rest = utf8_lines.with_line_feeds(piece).split("\n")
        for line in whole:
            words = split(line)
            batch += words
            last = words[-1] if words else last
            if last != EOS and (last or ends_lines == "all"):
                batch.append(EOS)
            last, is_open = "", False
        words = split(rest)
        last = words[-1] if words else last
        is_open = last != EOS and (is_open or bool(words if ends_lines == "filled" else rest))
        yield batch + words
    if is_open:
        yield [EOS]


def filled_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file that are not blank, without white space at the ends.

    Raises:
        BadInput: As for `tokens`.
    """
    rest = ""
    for piece in _pieces(path):
        *whole, rest = (rest + utf8_lines.with_line_feeds(piece)).split("\n")
        yield from filter(None, map(str.strip, whole))
    if rest := rest.strip():
        yield rest


def first_symbol(path: Path) -> tuple[int, str] | None:
    """Return the number of the first line, from 1, that has a word of `SYMBOLS`, with that word.

    Raises:
        BadInput: As for `tokens`.
    """
    before = 1
    for piece in _pieces(path):
        if any(symbol in piece for symbol in SYMBOLS):
            for number, line in enumerate(utf8_lines.with_line_feeds(piece).split("\n"), start=before):
                if symbol := next((word for word in line.split() if word in SYMBOLS), None):
                    return number, symbol
        before += utf8_lines.with_line_feeds(piece).count("\n")
    return None


def _pieces(path: Path) -> Iterator[str]:
    """Yield the text of a file in pieces; each but the last ends with a space or a line feed."""
    rest = ""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:  # without a byte order mark
            while chunk := file.read(_CHUNK_CHARACTERS):
                cut = max(chunk.rfind(" "), chunk.rfind("\n")) + 1
                if not cut and rest and len(chunk) == _CHUNK_CHARACTERS:
                    raise BadInput(
                        f"text file {path}: no space or line end in {len(rest + chunk):,} characters: allowed: words"
                    )
                if cut:
                    yield rest + chunk[:cut]
                    rest = chunk[cut:]
                else:
                    rest += chunk
        if rest:
            yield rest
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    except OSError as error:
        raise BadInput(f"text file {path}: {error.strerror}: allowed: a file that can be read") from error


def check_utf8(path: Path) -> None:
    """Raise `BadInput` with the first byte that is not UTF-8, if there is one."""
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            while file.read(_CHUNK_CHARACTERS):
                pass
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error


def _not_utf8(path: Path) -> BadInput:
    return BadInput(f"text file {path}: {_first_bad_byte(path)}: allowed: UTF-8")


def _first_bad_byte(path: Path) -> str:
    """Return where in the file decoding fails; the decoder itself reports a position in its buffer only."""
    start, left = 0, b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            data = left + block
            try:
                data.decode("utf-8")
                left = b""
            except UnicodeDecodeError as error:
                if error.end < len(data) or error.reason != "unexpected end of data":
                    return f"byte {start + error.start:,} is {data[error.start]:#04x}, which is not UTF-8"
                left = data[error.start :]
            start += len(data) - len(left)
    return f"byte {start:,} begins a character that does not end"
