"""Files of one record a line: their lines with numbers, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vocabench.impls.errors import BadInput

_BOM = b"\xef\xbb\xbf"


def numbered(path: Path, around: str | None = None) -> Iterator[tuple[int, str]]:
    """Numbers from 1, and lines without the signs `around` them, white space for None.

    Only a line feed ends one: text may hold other signs that Unicode ends lines by.

    Raises:
        BadInput: A line is empty or no UTF-8.
    """
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield number, text_of(path, number, line, offset, around)
            offset += len(line)


def text_of(path: Path, number: int, line: bytes, offset: int, around: str | None = None) -> str:
    """A line without white space, or the signs given, around it; `offset` is the byte of the file where it begins.

    Raises:
        BadInput: It is empty or no UTF-8.
    """
    start = len(_BOM) if not offset and line.startswith(_BOM) else 0
    try:
        text = line[start:].decode("utf-8").strip(around)
    except UnicodeDecodeError as error:
        at = start + error.start
        raise BadInput(
            f"{path}, line {number:,}: byte {offset + at:,} of the file is {line[at]:#04x}, which is not UTF-8: "
            "allowed: UTF-8"
        ) from None
    if not text:
        raise BadInput(f"{path}, line {number:,}: it is empty: allowed: text")
    return text


def is_text(value: object) -> bool:
    """Whether it is text that can be written as UTF-8: JSON may spell half a character."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= sign <= "\udfff" for sign in value)
