"""Resamples that are kept are the resamples that would be drawn again."""

import numpy as np
import pytest

from vocabench.harness.metrics import bootstrap


@pytest.mark.parametrize("sizes_S", [None, np.array([3.0, 0.0, 5.0, 2.0, 7.0])])
def test_kept_resamples_give_the_same_intervals(monkeypatch, sizes_S):
    rng = np.random.default_rng(0)
    first_SQ, second_SQ = rng.random((5, 2)), rng.random((5, 2))
    kept = bootstrap.differences(first_SQ, second_SQ, sizes_S=sizes_S)
    assert bootstrap.differences(first_SQ, second_SQ, sizes_S=sizes_S) == kept
    monkeypatch.setattr(bootstrap, "_MOST_KEPT", 0)
    assert bootstrap.differences(first_SQ, second_SQ, sizes_S=sizes_S) == kept
    monkeypatch.setattr(bootstrap, "_BLOCK", 7)
    for drawn, other in zip(bootstrap.differences(first_SQ, second_SQ, sizes_S=sizes_S), kept, strict=True):
        assert drawn.p_value == other.p_value
        assert drawn.interval.low == pytest.approx(other.interval.low)
