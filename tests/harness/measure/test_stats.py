"""Intervals compared with SciPy's exact tests and with known differences."""

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, wilcoxon

from vocabench.harness.measure import stats


@pytest.mark.parametrize("count", [6, 7, 9, 15, 30])
def test_the_interval_inverts_the_signed_rank_test(count):
    samples = np.random.default_rng(count).normal(size=count)
    interval = stats.location(samples.tolist())
    inside, outside = interval.low + 1e-9, interval.low - 1e-9
    assert wilcoxon(samples - inside, method="exact").pvalue > 0.05
    assert wilcoxon(samples - outside, method="exact").pvalue <= 0.05


def test_below_six_samples_the_interval_is_the_whole_range():
    interval = stats.location([3.0, 1.0, 2.0])
    assert (interval.low, interval.value, interval.high) == (1.0, 2.0, 3.0)


def test_coverage_is_near_the_confidence_level():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        interval = stats.location(rng.standard_t(3, size=9).tolist())
        hits += interval.low <= 0 <= interval.high
    assert hits / 400 > 0.92


def test_a_ratio_is_robust_against_rounds_disturbed_on_both_sides():
    rng = np.random.default_rng(0)
    disturbance = np.exp(rng.normal(0, 1.0, 9))  # up to several times slower, for both sides of a round
    fast = 0.1 * disturbance * np.exp(rng.normal(0, 0.01, 9))
    slow = 0.3 * disturbance * np.exp(rng.normal(0, 0.01, 9))
    interval, ratios = stats.paired_ratio(slow.tolist(), fast.tolist())
    assert interval.value == pytest.approx(3.0, rel=0.02)
    assert 2.9 < interval.low <= interval.value <= interval.high < 3.1
    assert len(ratios) == 9


@pytest.mark.parametrize(
    ("first", "second", "level"),
    [(6, 6, 0.95), (7, 12, 0.999), (30, 20, 0.99), (11, 11, 0.9999), (60, 60, 0.95), (60, 60, 0.9999)],
)
def test_the_interval_of_a_shift_inverts_the_rank_sum_test(first, second, level):
    rng = np.random.default_rng(first)
    lower, upper = rng.normal(size=first), rng.normal(0.5, size=second)
    interval = stats.shift(lower.tolist(), upper.tolist(), level)
    method = "exact" if first * second <= 2500 else "asymptotic"
    for inside, outside in (
        (interval.low + 1e-9, interval.low - 1e-9),
        (interval.high - 1e-9, interval.high + 1e-9),
    ):
        assert mannwhitneyu(upper - inside, lower, method=method).pvalue > 1 - level
        assert mannwhitneyu(upper - outside, lower, method=method).pvalue <= 1 - level


def test_with_too_few_samples_the_interval_of_a_shift_is_the_whole_range():
    interval = stats.shift([0.0, 1.0, 2.0], [10.0, 12.0], level=0.95)
    assert (interval.low, interval.high) == (8.0, 12.0)


def test_a_shift_needs_samples_of_both_sides():
    with pytest.raises(ValueError, match="at least one of each"):
        stats.shift([], [1.0])
