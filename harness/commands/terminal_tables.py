"""Markdown tables as wide as the terminal: columns are left out, and named below the table, instead of folded lines."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from itertools import groupby

_SEPARATOR = re.compile(r"(?<!\\)\|")
_KEYS = 2  # first columns, which name a line
_KEPT = "agreement"  # without it, no figure can be trusted
_TEXT, _SHORTEST_TEXT = (
    "message",
    20,
)  # a column of text, which is shortened to so many characters before it is left out


def terminal_width() -> int | None:
    """Return the width of the terminal in characters, or None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(text: str, width: int) -> str:
    """Return Markdown whose tables fit `width` columns. Other lines stay as they are."""
    return "\n".join(line for block in _blocks(text) for line in _fitted(block, width))


def _blocks(text: str) -> Iterator[list[str]]:
    """Yield runs of lines: each table, and the lines between two tables."""
    for _, lines in groupby(text.split("\n"), key=lambda line: line.startswith("|")):
        yield list(lines)


def _fitted(lines: list[str], width: int) -> list[str]:
    if not lines[0].startswith("|") or max(map(len, lines)) <= width:
        return lines
    rows = [_SEPARATOR.split(line)[1:-1] for line in lines]
    titles = [cell.strip() for cell in rows[0]]
    if any(len(row) != len(titles) for row in rows):
        return lines
    kept = list(range(len(titles)))
    widths = [max(len(row[column]) for row in rows) for column in kept]

    def excess() -> int:
        return 1 + sum(widths[column] + 1 for column in kept) - width

    if _TEXT in titles and excess() > 0:
        column = titles.index(_TEXT)
        rows = _shortened(rows, column, max(_SHORTEST_TEXT, widths[column] - 2 - excess()))
        widths[column] = max(len(row[column]) for row in rows)
    for column in reversed(range(_KEYS, len(titles))):
        if excess() <= 0:
            break
        if titles[column] not in (_KEPT, _TEXT):
            kept.remove(column)
    left_out = [title for column, title in enumerate(titles) if column not in kept]
    shown = ["|" + "|".join(row[column] for column in kept) + "|" for row in rows]
    return [*shown, "", f"Left out to fit {width} columns: {', '.join(left_out)}"] if left_out else shown


def _shortened(rows: list[list[str]], column: int, most: int) -> list[list[str]]:
    """Return the rows with the texts of a column cut to `most` characters."""
    result = []
    for number, row in enumerate(rows):
        text = row[column].strip()
        cell = f" {text if len(text) <= most else f'{text[: most - 1]}…'} "
        if number == 1:  # the rule below the titles
            cell = f"{'-' * (most + 1)}:"
        result.append([*row[:column], cell.rjust(most + 2) if number != 1 else cell, *row[column + 1 :]])
    return result
