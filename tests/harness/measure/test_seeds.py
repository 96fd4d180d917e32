"""Means and paired differences over seeds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabench.harness.measure import seeds
from vocabench.harness.quantities import HIGHER, LOWER

VALUES = st.lists(st.floats(1, 1000), min_size=2, max_size=8)


@pytest.mark.parametrize(
    ("count", "quantile"), [(2, 12.7062047362), (3, 4.3026527297), (5, 2.7764451052), (10, 2.2621571628)]
)
def test_the_interval_has_the_quantiles_of_tables(count, quantile):
    values = [float(number) for number in range(count)]
    found = seeds.mean(values)
    deviation = math.sqrt(sum((value - found.value) ** 2 for value in values) / (count - 1))
    assert found.high - found.value == pytest.approx(quantile * deviation / math.sqrt(count), rel=1e-9)
    assert found.value - found.low == pytest.approx(found.high - found.value)


@given(VALUES, st.floats(-100, 100), st.floats(0.01, 100))
def test_means_follow_shifts_and_scales_and_ignore_the_order(values, shift, scale):
    found, moved = seeds.mean(values), seeds.mean([scale * value + shift for value in reversed(values)])
    for name in ("value", "low", "high"):
        expected = scale * getattr(found, name) + shift
        assert getattr(moved, name) == pytest.approx(expected, rel=1e-9, abs=1e-7 * scale)


@given(VALUES, st.floats(0.5, 2))
def test_a_common_factor_is_a_relative_difference_without_spread(values, factor):
    baseline = dict(enumerate(values))
    found = seeds.relative_difference({seed: factor * value for seed, value in baseline.items()}, baseline)
    assert found is not None
    assert [found.value, found.low, found.high] == pytest.approx(3 * [factor - 1], abs=1e-9)


@given(VALUES)
def test_equal_values_are_level(values):
    found = seeds.difference(dict(enumerate(values)), dict(enumerate(values)))
    assert found is not None
    assert seeds.verdict(found, LOWER) == seeds.verdict(found, HIGHER) == "level"


def test_differences_are_paired_by_seed_and_need_a_common_one():
    found = seeds.difference({3: 5.0, 0: 1.5, 7: 9.0}, {0: 1.0, 3: 4.5, 1: 100.0})
    assert found == seeds.Estimate(0.5, 0.5, 0.5, 2)
    assert seeds.difference({0: 1.0}, {1: 1.0}) is seeds.relative_difference({0: 1.0}, {1: 1.0}) is None


def test_one_seed_has_no_interval_and_no_verdict():
    found = seeds.relative_difference({0: 90.0}, {0: 100.0})
    assert found is not None
    assert (found.value, found.low, found.high, found.seeds) == (pytest.approx(-0.1), -1, math.inf, 1)
    assert seeds.verdict(found, LOWER) == "one seed"


@pytest.mark.parametrize(("better", "verdicts"), [(LOWER, ("better", "worse")), (HIGHER, ("worse", "better"))])
def test_the_direction_decides_what_is_better(better, verdicts):
    lower, higher = seeds.Estimate(-2, -3, -1, 5), seeds.Estimate(2, 1, 3, 5)
    assert (seeds.verdict(lower, better), seeds.verdict(higher, better)) == verdicts


@pytest.mark.parametrize("count", [2, 3, 5])
def test_intervals_contain_the_true_difference_about_95_times_in_100(count):
    """Seeds move both methods together, and each by 7 %, as much as the most variable layer."""
    rng, repeats, covered = np.random.default_rng(0), 2000, 0
    for _ in range(repeats):
        common_S = rng.normal(0, 0.01, count)
        baseline_S, values_S = np.exp(np.log(100) + common_S + rng.normal(0, 0.07, (2, count)))
        found = seeds.relative_difference(dict(enumerate(1.1 * values_S)), dict(enumerate(baseline_S)))
        assert found is not None
        covered += found.low <= 0.1 <= found.high
    assert 0.935 < covered / repeats < 0.965
