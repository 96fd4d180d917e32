"""From text to words: the tokenization rules, applied to a stream so that no file is ever held whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from impls.errors import BadInput

EOS, UNK, NUMBER = "<eos>", "<unk>", "<num>"

_CHUNK_CHARACTERS = 1 << 22

# Letters of any script with inner apostrophes, numbers, and the punctuation that ends or joins clauses.
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*|\d+(?:[.,]\d+)*|[.,;:!?]")


def words_of(text: str) -> list[str]:
    """Lower-case words, `<num>` for numbers, and . , ; : ! ? as words of their own."""
    return [NUMBER if token[0].isdigit() else token for token in _WORD.findall(text.lower())]


def _lines(text: str) -> list[str]:
    """White space separates words; each line that holds one ends with <eos>."""
    found: list[str] = []
    for line in text.splitlines():
        if words := line.split():
            found += words
            found.append(EOS)
    return found


def _english(text: str) -> list[str]:
    """As `words_of`; each line that holds a word ends with <eos>."""
    found: list[str] = []
    for line in text.splitlines():
        if words := words_of(line):
            found += words
            found.append(EOS)
    return found


RULES = {
    "stream": str.split,  # one endless line, as text8
    "lines": _lines,
    "english": _english,
}


def tokens(path: Path, rule: str) -> Iterator[list[str]]:
    """The words of a file, some megabytes at a time.

    Raises:
        BadInput: The file is not UTF-8, naming the byte where it is not.
    """
    split = RULES[rule]
    end_of_piece = " " if rule == "stream" else "\n"
    rest = ""
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            while chunk := file.read(_CHUNK_CHARACTERS):
                cut = chunk.rfind(end_of_piece) + 1
                if cut:
                    yield split(rest + chunk[:cut])
                    rest = chunk[cut:]
                else:
                    rest += chunk
        if rest:
            yield split(rest)
    except UnicodeDecodeError as error:
        raise BadInput(f"text file {path}: {_first_bad_byte(path, error)}: allowed: UTF-8") from error
    except OSError as error:
        raise BadInput(f"text file {path}: {error.strerror}: allowed: a file that can be read") from error


def _first_bad_byte(path: Path, error: UnicodeDecodeError) -> str:
    """Where in the file, not in the decoder's buffer."""
    offset = 0
    with path.open("rb") as file:
        for line in file:
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as at:
                return f"byte {offset + at.start} is {line[at.start]:#04x}, which is not UTF-8"
            offset += len(line)
    return str(error)
