"""Peak memory of work whose size is known."""

import numpy as np

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
