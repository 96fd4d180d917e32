"""The commands that messages give for packages that are missing."""

from __future__ import annotations

from vocabench.harness.import_root import IMPORT_ROOT


def pip_install(*packages: str) -> str:
    """Return the command that installs `packages`, in a checkout with the exact versions that it is tested with."""
    pinned = ["-c constraints.txt"] if (IMPORT_ROOT / "constraints.txt").is_file() else []
    return " ".join(["pip install", *pinned, *packages])
