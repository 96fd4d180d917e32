"""Output that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vocabench.harness.atomic_write import write_atomically

if TYPE_CHECKING:
    from vocabench.harness.run.rows import Row


def emit(text: str, out: str | None) -> None:
    """Write `text` to the file `out`, if given, and to the screen.

    The file comes first: if it cannot be written, nothing but the error appears on the screen.
    """
    if out is not None:
        write_atomically(Path(out), text)
    print(text, end="" if text.endswith("\n") else "\n")


def print_table(rows: Sequence[Row]) -> None:
    """Print rows as Markdown tables."""
    from vocabench.harness.report import table
    from vocabench.harness.report.over_seeds import with_estimates
    from vocabench.harness.report.rows import flatten

    print(table.render(with_estimates(flatten(rows)), "markdown"))
