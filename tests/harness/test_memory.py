"""Peak memory of work whose size is known."""

import numpy as np

from harness import memory


def test_a_peak_that_is_freed_again_is_seen():
    def work():
        return np.ones(25_000_000).sum()  # 200 MB

    for measure in (memory.peak_resident_bytes, memory._sampled_peak):
        assert 180e6 < measure(work) < 300e6
        assert measure(lambda: None) < 20e6
