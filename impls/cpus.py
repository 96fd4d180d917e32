"""The CPUs that this process may use."""

from __future__ import annotations

import os


def usable() -> int:
    """Return the number of CPUs that this process may run on.

    `taskset` and cluster schedulers restrict them, and frameworks size their thread pools by them.
    """
    if hasattr(os, "sched_getaffinity"):  # not under macOS or Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
