"""Packages that only some datasets need."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from vocabench.impls.errors import BadInput


def require(purpose: str, packages: Mapping[str, str]) -> None:
    """
    Args:
        purpose: What needs them.
        packages: Name to import by, and name to install by.

    Raises:
        BadInput: One is missing; with the line that installs it.
    """
    missing = [name for module, name in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise BadInput(
            f"{purpose} needs {' and '.join(missing)}, not installed here: "
            f"allowed: 'pip install -c constraints.txt {' '.join(missing)}' first"
        )
