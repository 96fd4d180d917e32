"""What Linux reports about the processor."""

from __future__ import annotations

import platform
import sys
from functools import cache
from pathlib import Path


@cache
def has(*features: str) -> bool:
    """Return whether this is an x86 processor under Linux with these features."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return any(set(features) <= set(line.split()) for line in lines() if line.startswith("flags"))


@cache
def lines() -> tuple[str, ...]:
    """Return the lines that Linux reports about the first CPU and that `-march=native` depends on."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    return tuple(line for line in first if line.startswith(("vendor_id", "cpu family", "model\t", "stepping", "flags")))
