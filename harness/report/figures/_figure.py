"""What a figure of the report is, and how records are put together for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness.report.rows import Record
from vocabench.harness.run.cells import variant

Looks = Mapping[str, Mapping[str, str]]  # of a method, the same in every figure: colour and marker


@dataclass(frozen=True)
class Figure:
    """
    Attributes:
        section: Where in the report it stands.
        title: What it shows.
        caption: How to read it.
        svg: The drawing.
        columns, lines: The same numbers as a table, for readers who cannot see the drawing.
    """

    section: str
    title: str
    caption: str
    svg: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


def name_of(record: Record) -> str:
    return f"{record['method']} {record['options']}".strip()


def name_of_cell(cell: Mapping[str, Any]) -> str:
    """As that of its records."""
    return f"{cell['method']} {variant(cell['options'])}".strip()


def unless_test(split: str | None) -> str:
    """Which split it is of, where it is not that for testing."""
    return f", {split} split" if split not in (None, "", "test") else ""
