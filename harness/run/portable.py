"""Cells without paths: published rows name files and folders, and identify their contents by a checksum."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from vocabench.harness import registry
from vocabench.harness.run.cells import Cell
from vocabench.impls.options import Destination, File, Folder, Table, Words

_PATHS = (File, Folder, Destination, Table, Words)  # kinds of option and setting that hold a path


def by_name(cell: Cell) -> Cell:
    """Return the cell with the paths of its dataset, options and settings reduced to file names."""
    options = registry.definition(cell.method).options if cell.method in registry.methods() else {}
    return dataclasses.replace(
        cell,
        dataset=_name(cell.dataset),
        options=_names(cell.options, options),
        settings=_names(cell.settings, registry.settings(cell.task)),
    )


def _names(values: Mapping[str, Any], kinds: Mapping[str, object]) -> dict[str, Any]:
    """Reduce paths to names in the values of known kinds that hold paths, and of unknown kinds."""
    return {
        name: _name(value) if isinstance(kinds.get(name), (*_PATHS, NoneType)) else value
        for name, value in values.items()
    }


def _name(value: Any) -> Any:
    return Path(value).name if isinstance(value, str) and "/" in value else value
