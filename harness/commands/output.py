"""Output that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vocabench.harness.atomic_write import write_atomically
from vocabench.harness.commands.terminal_tables import fitted, terminal_width

if TYPE_CHECKING:
    from vocabench.harness.run.rows import Row


def emit(text: str, out: str | None) -> None:
    """Write `text` to the file `out`, if given, and to the screen, where tables are as wide as the terminal.

    The file comes first: if it cannot be written, nothing but the error appears on the screen.
    """
    if out is not None:
        write_atomically(Path(out), text)
    show(text)


def show(text: str) -> None:
    """Write text to the screen, where tables are as wide as the terminal, if it is one."""
    width = terminal_width()
    shown = text if width is None else fitted(text, width)
    print(shown, end="" if shown.endswith("\n") else "\n")


def print_table(rows: Sequence[Row]) -> None:
    """Print rows as Markdown tables."""
    from vocabench.harness.report import table
    from vocabench.harness.report.over_seeds import with_estimates
    from vocabench.harness.report.rows import flatten

    show(table.render(with_estimates(flatten(rows)), "markdown") + "\n")
