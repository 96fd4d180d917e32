"""The pages that hold made parts, as they should be."""

from __future__ import annotations

from pathlib import Path

from docs._figures import blocks, command_page
from docs._figures.published import Published

TOP = Path(__file__).resolve().parents[2]
_COMMAND = TOP / "docs" / "command.md"


def texts() -> list[Path]:
    """Return the pages that may hold blocks."""
    return [TOP / "README.md", *sorted(path for path in (TOP / "docs").rglob("*.md") if path != _COMMAND)]


def made() -> dict[Path, str]:
    """Return the current text of each page that is made, or has parts that are."""
    published = Published(TOP / "results")
    found = {_COMMAND: command_page.text()}
    for path in texts():
        text = path.read_text()
        if blocks.BEGIN in text:
            found[path] = blocks.updated(text, published, path.relative_to(TOP).as_posix())
    return found
