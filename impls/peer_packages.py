"""The packages of peers: layers that call an implementation by others."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from vocabench.impls.errors import Unsupported


def require(method: str, package: str, install: str, device: str = "") -> None:
    """Check that the package of a peer is installed.

    Args:
        method: The peer, named in the message.
        package: Import name of the package.
        install: Argument of `pip install` for it.
        device: What else the peer needs.

    Raises:
        Unsupported: The package is not installed.
    """
    if importlib.util.find_spec(package) is None:
        needs = f"{device} and {package}" if device else package
        raise Unsupported(
            f"{method} needs {needs}, which is not installed here: allowed: 'pip install {install}' first"
        )


def versioned(package: str) -> str:
    """Return the name of an installed package and its version, for a row."""
    return f"{package} {importlib.metadata.version(package)}"
