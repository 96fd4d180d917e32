"""Lines of UTF-8 files, with errors that name the line and the byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from vocabench.impls.errors import BadInput

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile("\r\n|[\n\v\f\r\x85\u2028\u2029]")  # those of Unicode's newline guidelines
_OTHER_LINE_END = re.compile("[\v\f\r\x85\u2028\u2029]")
_LINE_END_BYTES = re.compile(b"|".join(end.encode() for end in ("\r\n", *"\n\v\f\r\x85\u2028\u2029")))


def with_line_feeds(text: str) -> str:
    """Replace every line end of running text by a line feed: CR, CR LF, NEL, VT, FF, and the separators of Unicode."""
    return _LINE_END.sub("\n", text) if _OTHER_LINE_END.search(text) else text


def end_of_line(data: bytes) -> int:
    """Return the number of bytes of running text up to the first line end and with it; 0 if there is none."""
    end = _LINE_END_BYTES.search(data)
    return end.end() if end else 0


def numbered(path: Path, stripped: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line.

    Only a line feed ends a line: text may contain other characters that Unicode counts as line ends.

    Args:
        path: Path of the file.
        stripped: Characters to strip from both ends of a line; None strips white space.

    Raises:
        BadInput: A line is empty or not UTF-8.
    """
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield number, decode(path, number, line, offset, stripped)
            offset += len(line)


def decode(path: Path, number: int, line: bytes, offset: int, stripped: str | None = None) -> str:
    """Return the text of a line.

    Args:
        path: Path of the file, for messages.
        number: Number of the line, for messages.
        line: Bytes of the line.
        offset: Byte of the file at which the line begins.
        stripped: Characters to strip from both ends; None strips white space.

    Raises:
        BadInput: The line is empty or not UTF-8.
    """
    start = len(_BOM) if not offset and line.startswith(_BOM) else 0
    try:
        text = line[start:].decode("utf-8").strip(stripped)
    except UnicodeDecodeError as error:
        position = start + error.start
        raise BadInput(
            f"{path}, line {number:,}: byte {offset + position:,} of the file is {line[position]:#04x}, "
            "which is not UTF-8: allowed: UTF-8"
        ) from None
    if not text:
        raise BadInput(f"{path}, line {number:,}: it is empty: allowed: text")
    return text


def is_text(value: object) -> bool:
    """Return whether a JSON value is non-empty text that UTF-8 can encode: JSON allows lone surrogates."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= sign <= "\udfff" for sign in value)
