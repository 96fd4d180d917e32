"""Figures of the report, and names of the methods in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vocabench.harness.report.rows import Record
from vocabench.harness.run.cells import Cell

Looks = Mapping[str, Mapping[str, str]]  # colour and marker by method, the same in all figures


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Attributes:
        section: Id of its section in the report.
        title: Contents.
        caption: Explanation.
        svg: Drawing.
        columns, lines: Values as a table, for readers who cannot see the drawing.
    """

    section: str
    title: str
    caption: str
    svg: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


def name_of(record: Record) -> str:
    """Return the method with its options."""
    return f"{record['method']} {record['options']}".strip()


def name_of_cell(cell: Cell) -> str:
    """Return the same name as `name_of` for the records of a cell."""
    return f"{cell.method} {cell.variant}".strip()


def unless_test(split: str | None) -> str:
    """Return the suffix of a title that names a split other than "test"."""
    return f", {split} split" if split not in (None, "", "test") else ""
