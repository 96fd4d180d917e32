"""The kernel's count of processes that it killed because memory ran out, to tell such kills from others."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_COUNTER = "oom_kill"
_ROOT = Path("/")


def count(root: Path = _ROOT) -> int | None:
    """Return the number of such kills among the processes that share this one's memory limit, or on the machine.

    Returns:
        None if the kernel does not show it.
    """
    for path in (*_control_groups(root), root / "proc/vmstat"):
        with suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == _COUNTER:
                    return int(value)
    return None


def explain(before: int | None, after: int | None) -> tuple[str, str]:
    """Return the status of a cell whose worker was killed by SIGKILL, and why.

    Args:
        before, after: `count` before the cell and after the kill.
    """
    if before is None or after is None:
        return "error", "whether for lack of memory is not known, because the kernel's count cannot be read here"
    if after > before:
        return "oom", "while the kernel killed a process for lack of memory"
    return "error", "but not for lack of memory, by the kernel's count: a person, a scheduler or another program did it"


def _control_groups(root: Path) -> list[Path]:
    """Return the files of this process's control group that may hold the count, for both versions of cgroups."""
    files = []
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                files.append(root / "sys/fs/cgroup" / path.lstrip("/") / "memory.events")
            elif "memory" in controllers.split(","):
                files.append(root / "sys/fs/cgroup/memory" / path.lstrip("/") / "memory.oom_control")
    return files
