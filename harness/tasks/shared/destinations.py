"""Paths to write to, whose names may depend on the cell."""

from __future__ import annotations

from pathlib import Path

from vocabench.harness.run.cells import Cell
from vocabench.harness.run.settings import Setting
from vocabench.impls.errors import BadInput
from vocabench.impls.options import Destination

SAVE: dict[str, Setting] = {
    "save": Destination("new folder for the trained network, whose name may contain {method}, {framework} and {seed}")
}

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


def network_path(cell: Cell) -> Path | None:
    """Return the folder for the trained network of a cell with the setting `SAVE`; None for none.

    Raises:
        BadInput: As in `new_path`.
    """
    return new_path(cell, "save", "network-{method}-{framework}-{seed}")
