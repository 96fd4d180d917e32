"""Numbers on a command line, in ASCII digits. Python's own conversions also accept '1_0', ' 6' and '１２'."""

from __future__ import annotations

import re

_COUNT = re.compile(r"[0-9]+")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def parse_count(text: str) -> int:
    """Parse an integer without a sign.

    Raises:
        ValueError: `text` is anything else.
    """
    return int(_matched(_COUNT, text))


def parse_integer(text: str) -> int:
    """Parse an integer.

    Raises:
        ValueError: `text` is anything else.
    """
    return int(_matched(_INTEGER, text))


def parse_number(text: str) -> float:
    """Parse a number in decimal or scientific notation.

    Raises:
        ValueError: `text` is anything else.
    """
    return float(_matched(_NUMBER, text))


def _matched(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} is not a number in ASCII digits")
    return text
