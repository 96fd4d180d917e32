"""What a command shows while it measures: lines on standard error, and events as JSON lines on standard output."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

from vocabench.harness.run.rows import storable


class Reporter:
    """The output of a measurement.

    Args:
        quiet: Show nothing but errors and where the rows are.
        as_json: Write events to standard output, as one JSON object per line, instead of tables.
        console: Where lines go; standard error if None.
    """

    def __init__(self, *, quiet: bool = False, as_json: bool = False, console: Console | None = None) -> None:
        self.quiet, self.as_json = quiet, as_json
        self.console = console if console is not None else Console(stderr=True)

    def note(self, text: str) -> None:
        """Show a line, unless the output is to be quiet."""
        if not self.quiet:
            self.always(text)

    def always(self, text: str) -> None:
        """Show a line of text as it is: it is neither folded nor read as markup."""
        self.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def event(self, kind: str, **fields: Any) -> None:
        """Write an event for programs."""
        if self.as_json:
            print(json.dumps({"event": kind, **storable(fields)}, allow_nan=False), flush=True)
