"""The intervals against scipy's exact signed-rank test and against planted differences."""

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, wilcoxon

from vocabench.harness.measure import stats


@pytest.mark.parametrize("count", [6, 7, 9, 15, 30])
def test_the_interval_inverts_the_signed_rank_test(count):
    samples = np.random.default_rng(count).normal(size=count)
    found = stats.location(samples.tolist())
    inside, outside = found.low + 1e-9, found.low - 1e-9
    assert wilcoxon(samples - inside, method="exact").pvalue > 0.05
    assert wilcoxon(samples - outside, method="exact").pvalue <= 0.05


def test_below_six_samples_the_whole_range_is_given():
    found = stats.location([3.0, 1.0, 2.0])
    assert (found.low, found.value, found.high) == (1.0, 2.0, 3.0)


def test_coverage_is_near_its_level():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        found = stats.location(rng.standard_t(3, size=9).tolist())
        hits += found.low <= 0 <= found.high
    assert hits / 400 > 0.92


def test_a_ratio_survives_rounds_that_were_disturbed_together():
    rng = np.random.default_rng(0)
    disturbance = np.exp(rng.normal(0, 1.0, 9))  # up to several times slower, for both of a round
    fast = 0.1 * disturbance * np.exp(rng.normal(0, 0.01, 9))
    slow = 0.3 * disturbance * np.exp(rng.normal(0, 0.01, 9))
    found, ratios = stats.paired_ratio(slow.tolist(), fast.tolist())
    assert found.value == pytest.approx(3.0, rel=0.02)
    assert 2.9 < found.low <= found.value <= found.high < 3.1
    assert len(ratios) == 9


@pytest.mark.parametrize(
    ("first", "second", "level"),
    [(6, 6, 0.95), (7, 12, 0.999), (30, 20, 0.99), (11, 11, 0.9999), (60, 60, 0.95), (60, 60, 0.9999)],
)
def test_the_shift_s_interval_inverts_the_rank_sum_test(first, second, level):
    rng = np.random.default_rng(first)
    lower, upper = rng.normal(size=first), rng.normal(0.5, size=second)
    found = stats.shift(lower.tolist(), upper.tolist(), level)
    method = "exact" if first * second <= 2500 else "asymptotic"
    for inside, outside in ((found.low + 1e-9, found.low - 1e-9), (found.high - 1e-9, found.high + 1e-9)):
        assert mannwhitneyu(upper - inside, lower, method=method).pvalue > 1 - level
        assert mannwhitneyu(upper - outside, lower, method=method).pvalue <= 1 - level


def test_a_shift_of_too_few_samples_has_the_whole_range():
    found = stats.shift([0.0, 1.0, 2.0], [10.0, 12.0], level=0.95)
    assert (found.low, found.high) == (8.0, 12.0)


def test_a_shift_needs_samples():
    with pytest.raises(ValueError, match="at least one of each"):
        stats.shift([], [1.0])
