"""Peak memory of a piece of work: on the CPU the process's high-water mark, reset before it; else a device's count."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from harness import registry

# mallopt's parameters and glibc's own values of them.
_TRIM_THRESHOLD, _GLIBC_TRIM_THRESHOLD = -1, 128 * 1024
_MMAP_MAX, _GLIBC_MMAP_MAX = -4, 65536
_ARENA_MAX = -8

_SMALLEST_BALLAST, _FINER = 20, 3  # log2 of bytes, and of how many times smaller the next size is
_OF_RESIDENT, _OF_FREE = 4, 8  # shares of memory that the largest may take
_MOST_BLOCKS = 2000


class _Glibc:
    """The C library where it is glibc, and what it was told.

    Attributes:
        library: None where there is another: that is left as it is.
        keeps_freed: Whether this process asked for it.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        self.library = library if hasattr(library, "mallopt") else None
        self.keeps_freed = False

    def keep(self, freed: bool) -> None:
        if self.library is not None:
            self.library.mallopt(_ARENA_MAX, 1)  # the arenas of other threads have no room for anything large
            self.library.mallopt(_TRIM_THRESHOLD, -1 if freed else _GLIBC_TRIM_THRESHOLD)
            self.library.mallopt(_MMAP_MAX, 0 if freed else _GLIBC_MMAP_MAX)
            self.keeps_freed = freed


_glibc = _Glibc()


def keep_freed() -> None:
    """From here on freed memory stays in the process, as TensorFlow keeps it by itself and all frameworks do on a GPU.

    By itself glibc gives each large array back to the kernel, which clears the same pages again for the next step.
    Called before a framework has started its threads.
    """
    _glibc.keep(freed=True)


def allocation() -> str:
    """What becomes of freed memory, as a row's provenance says it."""
    return "kept" if _glibc.keeps_freed else "left to the C library"


@contextmanager
def freed_given_back() -> Iterator[None]:
    """What was freed before goes back to the system, and within `keep_freed` is suspended.

    A process that never asked for it keeps glibc's own thresholds, which move with what it frees until one is set.
    """
    gc.collect()
    kept = _glibc.keeps_freed
    if kept:
        _glibc.keep(freed=False)
    if _glibc.library is not None:
        _glibc.library.malloc_trim(0)
    try:
        yield
    finally:
        if kept:
            _glibc.keep(freed=True)


def peak_bytes(framework: str, device: str, run: Callable[[], object]) -> int | None:
    """Most memory of a device ("cpu", "cuda", ...) in use during `run` above what was in use before; None where the
    device does not count it. `run` is called once."""
    adapter = registry.adapter(framework)
    if device == "cpu":
        return peak_resident_bytes(run, adapter.ballast)
    return adapter.peak_device_bytes(device, run)


def peak_resident_bytes(run: Callable[[], object], allocate: Callable[[int], object | None] = lambda size: None) -> int:
    """Most resident memory during `run` above what was resident before it.

    On Linux the kernel keeps the high-water mark exactly. Elsewhere a thread samples every millisecond, and a shorter
    peak may be missed. Freed memory is returned to the system first, or a peak could hide in it; a framework that keeps
    what it has freed gives `allocate`, and what it keeps is taken up while `run` runs.

    Args:
        run: The work.
        allocate: Makes an array of so many bytes and writes to it; None where freed memory goes back to the system.
    """
    held = _take_up_kept_memory(allocate)
    try:
        with freed_given_back():
            return _peak(run)
    finally:
        del held


def _take_up_kept_memory(allocate: Callable[[int], object | None]) -> list[object]:
    """Arrays of falling sizes, of each until two in a row had to come from the system.

    From sizes near those of the arrays that the process has had: what is kept in one piece is not given away in small
    ones, and would be there for a gradient as large as the weights.
    """
    held: list[object] = []
    resident, free = psutil.Process().memory_info().rss, psutil.virtual_memory().available
    room = min(resident, free // 4)  # what is kept is resident, and under pressure resident memory does not grow
    largest = max(_SMALLEST_BALLAST, min(resident // _OF_RESIDENT, free // _OF_FREE).bit_length() - 1)
    for exponent in range(largest, _SMALLEST_BALLAST - 1, -_FINER):
        size, grown = 2**exponent, 0
        while grown < 2 and size <= room and len(held) < _MOST_BLOCKS:
            before = psutil.Process().memory_info().rss
            block = allocate(size)
            if block is None:
                return []
            held.append(block)
            room -= size
            grown = grown + 1 if psutil.Process().memory_info().rss - before > 0.9 * size else 0
    return held


def _peak(run: Callable[[], object]) -> int:
    if sys.platform == "linux" and _reset_high_water_mark():
        before = psutil.Process().memory_info().rss
        run()
        return max(0, _high_water_mark() - before)
    return _sampled_peak(run)


def _reset_high_water_mark() -> bool:
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:  # some sandboxes forbid it
        return False
    return True


def _high_water_mark() -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise OSError("no VmHWM line in /proc/self/status")


def _sampled_peak(run: Callable[[], object]) -> int:
    process = psutil.Process()
    before = peak = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return peak - before
