"""Installed packages that datasets need or are built from."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from vocabench.harness.installing import pip_install
from vocabench.impls import cache_folder
from vocabench.impls.errors import Unsupported

STANDARD_LIBRARY = "python"


def require(purpose: str, packages: Mapping[str, str]) -> None:
    """Check that optional packages are installed.

    Args:
        purpose: What needs them, as the message begins.
        packages: Name on the package index, by import name.

    Raises:
        Unsupported: A package is missing; the message contains the command that installs it.
    """
    missing = [name for module, name in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise Unsupported(
            f"{purpose} needs {' and '.join(missing)}, not installed here: allowed: '{pip_install(*missing)}' first"
        )


def installed_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed, by import name."""
    versions = {}
    distributions = metadata.packages_distributions() if set(packages) != {STANDARD_LIBRARY} else {}
    for package in packages:
        if package == STANDARD_LIBRARY:
            versions[package] = ".".join(map(str, sys.version_info[:3]))
        elif package in distributions:
            versions[package] = metadata.version(distributions[package][0])
    return versions


def built_folder(name: str, version: int, built_from: Mapping[str, str], subfolder: str = "texts") -> Path:
    """Return the cache folder of a dataset that is built from installed packages.

    Args:
        name: Name of the dataset.
        version: Version of the code that builds it.
        built_from: Versions of the packages, and anything else that determines the contents.
        subfolder: Subfolder of the cache.
    """
    key = hashlib.sha256(json.dumps([version, built_from]).encode()).hexdigest()[:16]
    return cache_folder.path() / subfolder / f"{name}-{key}"
