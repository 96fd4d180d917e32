"""The frequency probe on vectors with a planted direction and without one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from vocabench.harness.word_vectors import probe
from vocabench.impls.errors import BadInput

RNG = np.random.default_rng(0)
COUNTS = RNG.permutation(np.r_[np.full(300, 5), np.full(500, 100)])


def test_a_planted_direction_is_found():
    vectors_VD = RNG.standard_normal((800, 20)) * RNG.uniform(0.1, 10.0, (800, 1))
    unit_VD = vectors_VD / np.linalg.norm(vectors_VD, axis=1, keepdims=True)
    unit_VD[:, 3] += np.where(COUNTS > 50, 1.0, -1.0)
    found = probe.frequency(unit_VD * RNG.uniform(0.1, 10.0, (800, 1)), COUNTS, 50, seed=0)
    assert found.area > 0.99
    assert found.accuracy > 0.95
    assert (found.trained, found.tested) == (300, 300)


def test_random_vectors_are_at_chance():
    found = probe.frequency(RNG.standard_normal((800, 20)), COUNTS, 50, seed=0)
    low, high = binom.interval(0.999, found.tested, 0.5)
    assert low <= found.accuracy * found.tested <= high
    # The standard deviation of the area at chance, from that of Mann and Whitney's statistic.
    half = found.tested // 2
    assert abs(found.area - 0.5) < 3.3 * np.sqrt((2 * half + 1) / (12 * half * half))


def test_length_is_no_direction():
    """Frequent words with long vectors in random directions stay at chance."""
    vectors_VD = RNG.standard_normal((800, 20)) * np.where(COUNTS > 50, 100.0, 1.0)[:, None]
    assert abs(probe.frequency(vectors_VD, COUNTS, 50, seed=1).area - 0.5) < 0.12


def test_the_seed_decides_the_words():
    vectors_VD = RNG.standard_normal((800, 20))
    first, again, other = (probe.frequency(vectors_VD, COUNTS, 50, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.area != other.area


def test_words_without_a_direction_are_left_out():
    vectors_VD = RNG.standard_normal((800, 4))
    vectors_VD[np.flatnonzero(COUNTS > 50)[10:]] = 0
    found = probe.frequency(vectors_VD, COUNTS, 50, seed=0)
    assert (found.trained, found.tested) == (10, 10)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=20))
def test_the_area_is_the_share_of_pairs_in_order(items):
    scores, labels = np.array([score for score, _ in items], dtype=float), np.array([label for _, label in items])
    if labels.all() or not labels.any():
        return
    wins = [(p > n) + 0.5 * (p == n) for p in scores[labels] for n in scores[~labels]]
    assert probe.roc_area(scores, labels) == pytest.approx(np.mean(wins))


@pytest.mark.parametrize(
    ("vectors", "counts", "threshold", "message"),
    [
        (np.ones((8, 2)), np.r_[np.ones(3), np.full(5, 9)], 5, "threshold=5: 3 words with a count below it: allowed"),
        (np.ones((8, 2)), np.r_[np.ones(5), np.full(3, 9)], 5, "threshold=5: 3 words with a count from it: allowed"),
        (np.ones((8, 2)), np.ones(7), 5, r"vectors of shape \(8, 2\) with counts of shape \(7,\)"),
        (np.full((8, 2), np.inf), np.ones(8), 5, "vectors contain NaN or infinity"),
    ],
)
def test_bad_input_is_refused_in_one_line(vectors, counts, threshold, message):
    with pytest.raises(BadInput, match=message) as raised:
        probe.frequency(vectors, counts, threshold, seed=0)
    assert "\n" not in str(raised.value)
