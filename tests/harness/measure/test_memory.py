"""Peak memory of work whose size is known."""

import platform
import subprocess
import sys

import numpy as np
import pytest

from vocabench.harness import registry
from vocabench.harness.measure import memory

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tests the allocator of glibc")


def printed_by(code, *arguments):
    """Run code in a new process, whose allocator no other test has changed."""
    return subprocess.check_output([sys.executable, "-c", code, *arguments], text=True).strip()


def test_a_peak_is_measured_even_if_it_is_freed_again():
    def work():
        return np.ones(25_000_000).sum()  # 200 MB

    for measure in (memory.peak_resident_bytes, memory._sampled_peak):
        assert 180e6 < measure(work) < 300e6
        assert measure(lambda: None) < 20e6


_TENSORFLOW_STEPS = """
import tensorflow as tf
from vocabench.harness import registry
from vocabench.harness.measure import memory

def work():
    return tf.reduce_sum(tf.ones([2**25]))  # 4 bytes each; the allocator rounds up to powers of two

print(registry.adapter("tensorflow").counts_memory("cpu"))
for _ in range(3):
    print(memory.peak_bytes("tensorflow", "cpu", work))
"""


@pytest.mark.lengthy
@pytest.mark.skipif("tensorflow" not in registry.installed_frameworks(), reason="tensorflow is not installed")
def test_a_framework_that_counts_its_memory_is_asked(monkeypatch):
    """TensorFlow keeps freed memory, so that the system would see only the first peak."""
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")  # without oneDNN, as on older CPUs, TensorFlow counts no memory
    counts, *peaks = printed_by(_TENSORFLOW_STEPS).split()
    assert counts == "True"
    assert len(peaks) == 3
    assert all(2**27 <= int(peak) < 2**27 + 2**20 for peak in peaks)


_STEPS = """
import resource, sys, threading
from vocabench.harness.measure import memory

def work(size=200_000_000):  # bytes, about 49,000 pages
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
# By default glibc keeps arrays up to 32 MiB once it has freed one, unless a threshold was ever set.
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


@needs_glibc
@pytest.mark.parametrize("kept", [True, False])
def test_freed_memory_is_reused_without_the_kernel_and_hides_no_peak(kept):
    large, peak, small, within, allocation = printed_by(_STEPS, *(["keep"] if kept else [])).split("|")
    assert (int(large) < 1000) == kept, large
    assert 180e6 < float(peak) < 300e6
    assert int(small) < 1000, "measuring a peak must not change the allocator for later work"
    assert int(within) > 40_000
    assert (allocation == "kept") == kept


_CLEARED = """
from vocabench.harness.measure import memory

memory.keep_freed()
before = memory.fresh_pages()
memory.clear_pages(50_000)
cleared = memory.fresh_pages()
memory.clear_pages(10**12)  # more than any machine has, so nothing happens
array = b"x" * 200_000_000  # fewer than 49,000 pages
print(cleared - before, memory.fresh_pages() - cleared)
"""


@needs_glibc
def test_an_array_uses_pages_that_were_cleared_before():
    cleared, fresh = printed_by(_CLEARED).split()
    assert int(cleared) > 49_000
    assert int(fresh) < 1000


_GAPS = """
from vocabench.harness.measure import memory

memory.keep_freed()
arrays = [b"x" * size for size in (60_000_000, 120_000, 90_000_000, 120_000, 70_000_000, 120_000)]
del arrays[0::2]  # leaves three gaps between the small arrays

def work():
    for size in (55_000_000, 65_000_000, 85_000_000):  # one after the other
        b"x" * size

print(memory.peak_resident_bytes(work))
"""


@needs_glibc
def test_gaps_in_the_heap_keep_no_freed_pages():
    assert 84e6 < float(printed_by(_GAPS)) < 90e6


_GIVEN_BACK = """
import psutil
from vocabench.harness.measure import memory

memory.keep_freed()
arrays = [b"x" * size for size in (100_000_000, 120_000, 100_000_000, 120_000)]
full = psutil.Process().memory_info().rss
del arrays[0::2]  # leaves two gaps below arrays that stay
kept = psutil.Process().memory_info().rss
memory.give_back_freed()
print(full - kept, full - psutil.Process().memory_info().rss, memory.allocation())
"""


@needs_glibc
def test_freed_memory_is_given_back_on_request():
    at_first, on_request, allocation = printed_by(_GIVEN_BACK).split()
    assert int(at_first) < 1e6
    assert int(on_request) > 190e6
    assert allocation == "kept"
