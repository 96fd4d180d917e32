"""A cell whose files and folders go by their names, for rows that leave this machine: where they lie is nobody's
business, and their sha256 stays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from vocabench.harness import registry
from vocabench.impls.options import Destination, File, Folder, Table, Words

_PLACES = (File, Folder, Destination, Table, Words)  # kinds of option and setting that name a file or a folder


def by_name(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The cell of a row, its dataset's place and those of its options and settings cut to names."""
    changed = {**cell, "dataset": _name(cell["dataset"])}
    for room, kinds in _kinds(cell).items():
        changed[room] = {
            name: _name(value) if isinstance(kinds.get(name), (*_PLACES, NoneType)) else value
            for name, value in cell[room].items()
        }
    return changed


def _kinds(cell: Mapping[str, Any]) -> dict[str, Mapping[str, object]]:
    """Of the method's options and the task's settings; of what this code does not know, none."""
    method = cell["method"]
    options = registry.definition(method).options if method in registry.methods() else {}
    return {"options": options, "settings": registry.settings(cell["task"])}


def _name(place: Any) -> Any:
    return Path(place).name if isinstance(place, str) and "/" in place else place
