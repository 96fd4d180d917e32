"""Peak memory of work whose size is known."""

import platform
import subprocess
import sys

import numpy as np
import pytest

from harness import memory


def test_a_peak_that_is_freed_again_is_seen():
    def work():
        return np.ones(25_000_000).sum()  # 200 MB

    for measure in (memory.peak_resident_bytes, memory._sampled_peak):
        assert 180e6 < measure(work) < 300e6
        assert measure(lambda: None) < 20e6


def test_memory_that_an_allocator_keeps_hides_no_peak():
    kept = [np.ones(2**20, dtype=np.uint8) for _ in range(100)]  # freed, but not given back

    def allocate(size):
        blocks = -(-size // 2**20)
        return [kept.pop() if kept else np.ones(2**20, dtype=np.uint8) for _ in range(blocks)]

    def work():
        kept.extend(allocate(50 * 2**20))

    assert memory.peak_resident_bytes(work) < 20e6
    assert 45e6 < memory.peak_resident_bytes(work, allocate) < 80e6


_STEPS = """
import resource, sys, threading
from harness import memory

def work(size=200_000_000):  # bytes: some 49,000 pages
    b"x" * size

def faults(size=200_000_000):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=work, args=(size,))
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if "keep" in sys.argv:
    memory.keep_freed()
faults()
large = faults()
peak = memory.peak_resident_bytes(work)
# glibc by itself keeps arrays up to 32 MiB once it has freed one, unless a threshold was ever set.
for _ in range(2):
    work(20_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work(20_000_000)
small = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
with memory.freed_given_back():
    work()
    within = faults()
print(large, peak, small, within, memory.allocation(), sep="|")
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library allocates in its own way")
@pytest.mark.parametrize("kept", [True, False])
def test_freed_memory_is_taken_again_without_the_kernel_and_hides_no_peak(kept):
    command = [sys.executable, "-c", _STEPS, *(["keep"] if kept else [])]
    said = subprocess.check_output(command, text=True)
    large, peak, small, within, allocation = said.strip().split("|")
    assert (int(large) < 1000) == kept, large
    assert 180e6 < float(peak) < 300e6
    assert int(small) < 1000, "a peak that was measured changes nothing for what comes after it"
    assert int(within) > 40_000
    assert (allocation == "kept") == kept
