"""Intervals over processes: their formula, and how often they hold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vocabench.harness.measure.calibration import coverage
from vocabench.harness.measure.process_spread import Spread, centres, interval, pooled_spread


def test_the_centre_of_a_process_is_the_median_of_its_logarithms():
    assert centres([1.0, 10.0, 2.0, 8.0], [3, 1]) == pytest.approx([math.log(2), math.log(8)])


def test_rounds_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match=r"3 samples of processes with \[2, 2\] rounds"):
        centres([1.0, 2.0, 3.0], [2, 2])


def spread_of(cells) -> Spread:
    spread = pooled_spread(cells)
    assert spread is not None
    return spread


def test_nothing_is_known_of_the_spread_of_single_processes():
    assert pooled_spread([[0.1], [0.2]]) is None


@given(st.lists(st.lists(st.floats(-2, 2), min_size=2, max_size=6), min_size=1, max_size=5))
def test_the_pooled_variance_is_that_of_the_textbook(cells):
    spread = spread_of(cells)
    squares = sum(np.var(values, ddof=1) * (len(values) - 1) for values in cells)
    assert spread.freedom == sum(len(values) - 1 for values in cells)
    assert spread.deviation == pytest.approx(math.sqrt(squares / spread.freedom), abs=1e-12)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8))
def test_the_interval_of_one_cell_is_that_of_the_t_test(values):
    spread = spread_of([values])
    found = interval(values, spread)
    centre, error = np.mean(values), stats.sem(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=centre, scale=error) if error > 0 else (centre, centre)
    assert np.log([found.low, found.value, found.high]) == pytest.approx([low, centre, high], abs=1e-9)


def test_more_degrees_of_freedom_give_a_shorter_interval():
    own, pooled = (interval([0.0, 0.1, -0.1], Spread(0.1, freedom)) for freedom in (2, 40))
    assert own.low < pooled.low < 1.0 < pooled.high < own.high


def normal_cells(rng, cells, processes, deviation):
    return [rng.normal(0.0, deviation, processes).tolist() for _ in range(cells)]


def test_pooled_intervals_hold_as_often_as_they_say():
    """Three processes a cell; cells of one class differ in their spread, as classes of times do."""
    rng = np.random.default_rng(1)
    held = total = 0
    for _ in range(400):
        cells = [values for scale in (0.02, 0.03) for values in normal_cells(rng, 5, 3, scale)]
        spread = spread_of(cells)
        intervals = [interval(values, spread) for values in cells]
        held += sum(each.low <= 1.0 <= each.high for each in intervals)
        total += len(intervals)
    assert 0.93 < held / total < 0.97


def test_calibration_finds_good_intervals_good_and_a_bias_bad():
    rng = np.random.default_rng(2)
    fair = normal_cells(rng, 10, 20, 0.02)
    biased = [[value + 0.1 for value in values] for values in normal_cells(rng, 10, 20, 0.02)]
    found = coverage({"fair": fair, "biased": biased}, processes=3, draws=200)
    assert 0.92 < found["fair"].coverage < 0.98
    assert found["fair"].deviation == pytest.approx(0.02, rel=0.2)
    assert found["biased"].coverage < 0.05


def test_calibration_needs_enough_processes():
    with pytest.raises(ValueError, match="a time in 2 processes: allowed: at least 3"):
        coverage({"short": [[0.0, 0.1]]}, processes=3)
