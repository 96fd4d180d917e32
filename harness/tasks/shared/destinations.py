"""Paths to write to, whose names may depend on the cell."""

from __future__ import annotations

from pathlib import Path

from vocabench.harness.run.cells import Cell
from vocabench.impls.errors import BadInput

_FIELDS = ("method", "framework", "seed")


def new_path(cell: Cell, setting: str, example: str) -> Path | None:
    """Return the path of a setting with {method}, {framework} and {seed} replaced; None if the setting is empty.

    Args:
        cell: The cell.
        setting: Name of the setting.
        example: A name that is new for each cell, for the message.

    Raises:
        BadInput: The path exists already (other than as an empty folder), or its folder does not.
    """
    name = cell.settings[setting]
    if not name:
        return None
    for field in _FIELDS:
        name = name.replace(f"{{{field}}}", str(getattr(cell, field)))
    path = Path(name)
    is_taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if is_taken or not path.parent.is_dir():
        raise BadInput(
            f"{setting}={path}: it exists, or its folder does not: allowed: a new name for each cell, such as {example}"
        )
    return path
