"""From text to words: the tokenization rules, applied to a stream so that no file is ever held whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vocabench.impls.errors import BadInput

EOS, UNK, NUMBER = "<eos>", "<unk>", "<num>"

_CHUNK_CHARACTERS = 1 << 21  # some tens of megabytes once they are words

# Letters of any script with inner apostrophes, numbers, and the punctuation that ends or joins clauses.
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*|\d+(?:[.,]\d+)*|[.,;:!?]")


def words_of(text: str) -> list[str]:
    """Lower-case words, `<num>` for numbers, and . , ; : ! ? as words of their own; all else is left out."""
    found = _WORD.findall(text.lower().replace("\u2019", "'"))
    return [NUMBER if token[0].isdigit() else token for token in found]


@dataclass(frozen=True)
class Rule:
    """How text becomes words.

    Attributes:
        split: From text to its words.
        ends_lines: Which lines end with <eos>: "none", "all", or "filled", those that hold a word.
    """

    split: Callable[[str], list[str]]
    ends_lines: str


RULES = {
    "stream": Rule(str.split, "none"),  # one endless line, as text8
    "lines": Rule(str.split, "all"),  # tokenized already
    "english": Rule(words_of, "filled"),
}


def tokens(path: Path, rule: str) -> Iterator[list[str]]:
    """The words of a file, some megabytes at a time.

    Raises:
        BadInput: The file cannot be read, is not UTF-8 (naming the byte where it is not), or has no white space.
    """
    split, ends_lines = RULES[rule].split, RULES[rule].ends_lines
    is_open = False  # the words of the last line so far were given out without its end
    for piece in _pieces(path):
        if ends_lines == "none":
            yield split(piece)
        elif ends_lines == "all":
            yield split(piece.replace("\n", f" {EOS} "))
            is_open = not piece.endswith("\n")
        else:
            found: list[str] = []
            *whole, rest = piece.split("\n")
            for line in whole:
                words = split(line)
                found += words
                if words or is_open:
                    found.append(EOS)
                is_open = False
            words = split(rest)
            is_open = is_open or bool(words)
            yield found + words
    if is_open:
        yield [EOS]


def _pieces(path: Path) -> Iterator[str]:
    """The file's text, each piece but the last up to a space or a line's end."""
    rest = ""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:  # a mark at the start is part of no word
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
        raise _no_utf8(path) from error
    except OSError as error:
        raise BadInput(f"text file {path}: {error.strerror}: allowed: a file that can be read") from error


def check_utf8(path: Path) -> None:
    """Raises `BadInput` naming the first byte that is not UTF-8."""
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            while file.read(_CHUNK_CHARACTERS):
                pass
    except UnicodeDecodeError as error:
        raise _no_utf8(path) from error


def _no_utf8(path: Path) -> BadInput:
    return BadInput(f"text file {path}: {_first_bad_byte(path)}: allowed: UTF-8")


def _first_bad_byte(path: Path) -> str:
    """Where in the file, which the decoder, seeing only its buffer, cannot say."""
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
