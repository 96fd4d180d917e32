"""Numbers as a command line spells them: in ASCII digits, where Python would read '1_0', ' 6' and '１２' too."""

from __future__ import annotations

import re

_COUNT = re.compile(r"[0-9]+")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def count(text: str) -> int:
    """From 0. Raises `ValueError` where it is none."""
    return int(_matched(_COUNT, text))


def whole(text: str) -> int:
    """Raises `ValueError` where it is none."""
    return int(_matched(_WHOLE, text))


def number(text: str) -> float:
    """A finite one. Raises `ValueError` where it is none."""
    return float(_matched(_NUMBER, text))


def _matched(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} is no number in ASCII digits")
    return text
