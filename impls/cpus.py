"""The CPUs that this process may use."""

from __future__ import annotations

import os


def usable() -> int:
    """How many: of those that the machine has the ones that the system lets this process run on, as `taskset` and
    clusters choose them, and frameworks make their pools of threads."""
    if hasattr(os, "sched_getaffinity"):  # not under macOS or Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
