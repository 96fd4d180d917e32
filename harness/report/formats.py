"""Titled tables as Markdown, LaTeX or HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import pandas as pd

FORMATS = ("markdown", "latex", "csv", "json", "html")

_BOLD, _END = "\ue000", "\ue001"  # around bold text until LaTeX's special characters are escaped


def section(title: str, table: pd.DataFrame, text_format: str) -> str:
    """Return a titled table in "markdown", "latex" or "html".

    LaTeX prints the cells in `table.attrs["best"]`, line numbers by column, in bold.
    """
    if text_format == "markdown":
        return f"### {title}\n\n{markdown(table)}\n"
    if text_format == "latex":
        marked = table.copy()
        for column, lines in table.attrs.get("best", {}).items():
            for line in lines:
                marked.loc[line, column] = f"{_BOLD}{marked.loc[line, column]}{_END}"
        body = marked.to_latex(index=False, escape=True, column_format="ll" + "r" * (table.shape[1] - 2))
        return f"% {title}\n" + body.replace(_BOLD, r"\textbf{").replace(_END, "}")
    return f"<h3>{escape(title)}</h3>\n{table.to_html(index=False, border=0)}\n"


def markdown(table: pd.DataFrame) -> str:
    """Return a Markdown table whose columns are aligned in a terminal too."""
    cells = [[str(name) for name in table.columns]]
    cells += [[str(value).replace("|", "\\|") for value in row] for row in table.to_numpy(dtype=object).tolist()]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(cells[0]))]

    def line(row: Sequence[str]) -> str:
        padded = zip(row, widths, strict=True)
        aligned = [text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(padded)]
        return f"| {' | '.join(aligned)} |"

    rule = "|" + "|".join("-" * (w + 1) + ("-" if i < 2 else ":") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])
