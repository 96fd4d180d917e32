"""Peak memory of a piece of work, by the framework's own count or the high-water mark of the process on a CPU."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from vocabench.harness import registry

# Version of the definition of a peak. Rows store theirs, and peaks of different versions are not compared. In version 2
# the measured call compiles nothing, TensorFlow counts its own memory, and gaps in the heap keep no freed pages.
DEFINITION = 2

# Parameters of mallopt, with the defaults of glibc.
_TRIM_THRESHOLD, _GLIBC_TRIM_THRESHOLD = -1, 128 * 1024
_MMAP_MAX, _GLIBC_MMAP_MAX = -4, 65536
_MMAP_THRESHOLD, _LOG2_MMAP_THRESHOLD = -3, 17
_ARENA_MAX = -8

_MOST_GAPS = 2000
_CLEARABLE_SHARE = 4  # clear_pages may take one part in four of the available memory


class _MallInfo(ctypes.Structure):
    """Result of glibc's `mallinfo`. `hblks` is the number of blocks that have a mapping of their own."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("arena", "ordblks", "smblks", "hblks")),
        *((name, ctypes.c_int) for name in ("hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


class _Glibc:
    """The allocator of the C library, if that is glibc.

    Attributes:
        library: The library; None if it is another one, whose allocator is left as it is.
        is_tuned: Whether a threshold was ever set. Until then, glibc adjusts its thresholds by itself.
        keeps_freed: Whether freed memory stays in the process, by the last setting.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        self.library = library if hasattr(library, "mallopt") else None
        if self.library is not None:
            self.library.malloc.restype, self.library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
            self.library.free.argtypes = [ctypes.c_void_p]
        self.is_tuned = self.keeps_freed = False

    def keep(self, freed: bool) -> None:
        if self.library is not None:
            self.library.mallopt(_ARENA_MAX, 1)  # arenas of other threads have no room for large arrays
            self.library.mallopt(_TRIM_THRESHOLD, -1 if freed else _GLIBC_TRIM_THRESHOLD)
            self.library.mallopt(_MMAP_MAX, 0 if freed else _GLIBC_MMAP_MAX)
            self.library.mallopt(_MMAP_THRESHOLD, 2**_LOG2_MMAP_THRESHOLD)
            self.is_tuned, self.keeps_freed = True, freed

    def clear(self, size: int) -> None:
        limit = psutil.virtual_memory().available // _CLEARABLE_SHARE
        if self.library is not None and self.keeps_freed and size <= limit:
            block = self.library.malloc(size)
            if block:
                ctypes.memset(block, 0, size)
                self.library.free(block)

    @contextmanager
    def fill_gaps(self) -> Iterator[None]:
        """Allocate, without writing to them, all gaps in the heap that have room for a large array.

        Within this context a large array gets a mapping of its own, which goes back to the kernel when it is freed. The
        heap of a process that keeps freed memory consists mostly of gaps. An array in one of them leaves its pages
        behind when it is freed, and the next array may be in another gap.

        Use it for one call that compiles nothing. Objects that a framework creates to keep would also get mappings of
        their own, which makes PyTorch's loop over clusters a quarter slower from then on.
        """
        if not self.is_tuned:
            yield
            return
        assert self.library is not None
        library, blocks = self.library, list[int]()
        library.mallinfo.restype = _MallInfo
        size = 2 ** (psutil.virtual_memory().total.bit_length() - 1)
        while size >= 2**_LOG2_MMAP_THRESHOLD and len(blocks) < _MOST_GAPS:
            mapped = library.mallinfo().hblks
            block = library.malloc(size)
            if block and library.mallinfo().hblks == mapped:
                blocks.append(block)
            else:
                library.free(block)
                size //= 2
        try:
            yield
        finally:
            for block in blocks:
                library.free(block)


_glibc = _Glibc()


def keep_freed() -> None:
    """Keep freed memory in the process from now on, as TensorFlow does by itself and all frameworks do on a GPU.

    By default glibc returns each large array to the kernel, which zeroes the same pages again for the next step. Call
    this before a framework starts its threads.
    """
    _glibc.keep(freed=True)


def allocation() -> str:
    """Return what happens to freed memory, for the provenance of a row."""
    return "kept" if _glibc.keeps_freed else "left to the C library"


def fresh_pages() -> int:
    """Return the number of zeroed pages that the process has received so far; 0 if the system does not count them."""
    if sys.platform == "win32":
        return 0
    import resource  # does not exist on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def clear_pages(count: int) -> None:
    """Make `count` more zeroed pages available to the allocator, for arrays that are placed where none was before.

    This works after `keep_freed`. Nothing happens if they would take a large share of the available memory.
    """
    _glibc.clear(count * mmap.PAGESIZE)


def give_back_freed() -> None:
    """Return free memory to the system, wherever it lies in the heap. Later work has to clear it anew."""
    gc.collect()
    if _glibc.library is not None:
        _glibc.library.malloc_trim(0)


@contextmanager
def freed_given_back() -> Iterator[None]:
    """Return freed memory to the system, now and within this context, even after `keep_freed`.

    A process without `keep_freed` keeps the thresholds of glibc, which adjust themselves until one is set.
    """
    kept = _glibc.keeps_freed
    if kept:
        _glibc.keep(freed=False)
    give_back_freed()
    try:
        yield
    finally:
        if kept:
            _glibc.keep(freed=True)


def peak_bytes(framework: str, device: str, run: Callable[[], object]) -> int | None:
    """Measure the peak of device memory during `run`, above what was in use before. `run` is called once.

    The framework's own count takes precedence, because freed memory that it keeps hides later peaks from the system.

    Args:
        device: "cpu", "cuda", ...

    Returns:
        The peak in bytes; None if neither the framework nor the system counts memory of the device.
    """
    adapter = registry.adapter(framework)
    if adapter.counts_memory(device):
        return adapter.peak_counted_bytes(device, run)
    if device == "cpu":
        return peak_resident_bytes(run)
    run()
    return None


def peak_resident_bytes(run: Callable[[], object]) -> int:
    """Measure the peak of resident memory during `run`, above what was resident before.

    On Linux the kernel keeps the exact high-water mark. Elsewhere a thread samples every millisecond and may miss a
    shorter peak. Freed memory is returned to the system first, because a peak could hide in it.
    """
    with freed_given_back(), _glibc.fill_gaps():
        if sys.platform != "linux" or not _reset_high_water_mark():
            return _sampled_peak(run)
        before = psutil.Process().memory_info().rss
        run()
        return max(0, _high_water_mark() - before)


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
