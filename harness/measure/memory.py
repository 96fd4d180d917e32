"""Peak memory of a piece of work: by the framework's own count, or on a CPU the process's high-water mark."""

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

# What a peak stands for: rows keep it, and none is compared with one of another. In 2 it is of a call that compiles
# nothing, counted by TensorFlow itself, and no gap of the heap keeps the pages of what was freed.
DEFINITION = 2

# mallopt's parameters and glibc's own values of them.
_TRIM_THRESHOLD, _GLIBC_TRIM_THRESHOLD = -1, 128 * 1024
_MMAP_MAX, _GLIBC_MMAP_MAX = -4, 65536
_MMAP_THRESHOLD, _LOG2_OF_ITS_BYTES = -3, 17
_ARENA_MAX = -8

_MOST_GAPS = 2000
_SPARE = 4  # of the memory that there is, the part that may be cleared beforehand


class _MallInfo(ctypes.Structure):
    """What glibc's `mallinfo` returns; `hblks` are the blocks that each have a mapping of their own."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("arena", "ordblks", "smblks", "hblks")),
        *((name, ctypes.c_int) for name in ("hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


class _Glibc:
    """The C library where it is glibc, and what it was told.

    Attributes:
        library: None where there is another: that is left as it is.
        is_told: Whether it was told anything: its thresholds move by themselves until then.
        keeps_freed: Whether it was told to, last.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        self.library = library if hasattr(library, "mallopt") else None
        if self.library is not None:
            self.library.malloc.restype, self.library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
            self.library.free.argtypes = [ctypes.c_void_p]
        self.is_told = self.keeps_freed = False

    def keep(self, freed: bool) -> None:
        if self.library is not None:
            self.library.mallopt(_ARENA_MAX, 1)  # the arenas of other threads have no room for anything large
            self.library.mallopt(_TRIM_THRESHOLD, -1 if freed else _GLIBC_TRIM_THRESHOLD)
            self.library.mallopt(_MMAP_MAX, 0 if freed else _GLIBC_MMAP_MAX)
            self.library.mallopt(_MMAP_THRESHOLD, 2**_LOG2_OF_ITS_BYTES)
            self.is_told, self.keeps_freed = True, freed

    def clear(self, size: int) -> None:
        spare = psutil.virtual_memory().available // _SPARE
        if self.library is not None and self.keeps_freed and size <= spare:
            block = self.library.malloc(size)
            if block:
                ctypes.memset(block, 0, size)
                self.library.free(block)

    @contextmanager
    def gaps_taken(self) -> Iterator[None]:
        """What the heap has room for between what is in use is taken, and not written to, so that a large array gets a
        mapping of its own, which goes back to the kernel with it.

        The heap of a process that kept what it freed is nearly all gaps. An array that lies in one leaves its pages
        behind when it is freed, and the next may lie in another. For one call that compiles nothing: what a framework
        makes then to keep would lie in mappings of its own too, and PyTorch's loop over clusters took a quarter longer
        for it from there on.
        """
        if not self.is_told:
            yield
            return
        assert self.library is not None
        library, gaps = self.library, list[int]()
        library.mallinfo.restype = _MallInfo
        size = 2 ** (psutil.virtual_memory().total.bit_length() - 1)
        while size >= 2**_LOG2_OF_ITS_BYTES and len(gaps) < _MOST_GAPS:
            mapped = library.mallinfo().hblks
            block = library.malloc(size)
            if block and library.mallinfo().hblks == mapped:
                gaps.append(block)
            else:
                library.free(block)
                size //= 2
        try:
            yield
        finally:
            for block in gaps:
                library.free(block)


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


def fresh_pages() -> int:
    """How many pages of memory the process has been given so far, each cleared first; 0 where nothing counts them."""
    if sys.platform == "win32":
        return 0
    import resource  # which Windows does not have

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def clear_pages(count: int) -> None:
    """Within `keep_freed`, so many more pages are there that the system has cleared already: for an array that comes to
    lie where none lay before. None where they are many for the memory that there is."""
    _glibc.clear(count * mmap.PAGESIZE)


@contextmanager
def freed_given_back() -> Iterator[None]:
    """What was freed before goes back to the system, and within `keep_freed` is suspended: what is freed goes back too.

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
    """Most memory of a device ("cpu", "cuda", ...) in use during `run` above what was in use before; None where neither
    the framework nor the system counts it. `run` is called once.

    A framework's own count comes first: what it keeps of freed memory hides the next peak from the system.
    """
    adapter = registry.adapter(framework)
    if adapter.counts_memory(device):
        return adapter.peak_counted_bytes(device, run)
    if device == "cpu":
        return peak_resident_bytes(run)
    run()
    return None


def peak_resident_bytes(run: Callable[[], object]) -> int:
    """Most resident memory during `run` above what was resident before it.

    On Linux the kernel keeps the high-water mark exactly. Elsewhere a thread samples every millisecond, and a shorter
    peak may be missed. Freed memory is returned to the system first, or a peak could hide in it.
    """
    with freed_given_back(), _glibc.gaps_taken():
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
