"""Intervals over processes: their formula, and how often they hold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vocabench.harness.measure.calibration import coverage
from vocabench.harness.measure.process_spread import Spread, centres, class_deviation, interval, spreads


def test_the_centre_of_a_process_is_the_median_of_its_logarithms():
    assert centres([1.0, 10.0, 2.0, 8.0], [3, 1]) == pytest.approx([math.log(2), math.log(8)])


def test_rounds_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match=r"3 samples of processes with \[2, 2\] rounds"):
        centres([1.0, 2.0, 3.0], [2, 2])


def spreads_of(cells) -> list[Spread]:
    found = spreads(cells)
    assert found is not None
    return found


def test_nothing_is_known_of_the_spread_of_single_processes():
    assert spreads([[0.1], [0.2]]) is None
    assert math.isnan(class_deviation([[0.1], [0.2]]))


@given(st.lists(st.lists(st.floats(-2, 2), min_size=2, max_size=6), min_size=1, max_size=5))
def test_the_deviation_of_a_class_is_that_of_the_textbook(cells):
    squares = sum(np.var(values, ddof=1) * (len(values) - 1) for values in cells)
    freedom = sum(len(values) - 1 for values in cells)
    assert class_deviation(cells) == pytest.approx(math.sqrt(squares / freedom), abs=1e-12)


def test_a_cell_of_one_process_takes_the_spread_of_its_class():
    alone, *others = spreads_of([[0.0], [0.0, 0.1, -0.1], [0.05, -0.1, 0.02]])
    assert alone.deviation == pytest.approx(class_deviation([[0.0, 0.1, -0.1], [0.05, -0.1, 0.02]]))
    assert all(other.freedom <= 4 for other in (alone, *others))


def test_a_noisy_cell_among_quiet_ones_keeps_its_spread():
    rng = np.random.default_rng(5)
    quiet = normal_cells(rng, 20, 3, 0.005)
    *_, noisy = spreads_of([*quiet, [0.0, 0.3, -0.3]])
    assert noisy.deviation > 0.25


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8).filter(lambda values: np.std(values, ddof=1) > 1e-3))
def test_the_interval_of_one_cell_is_that_of_the_t_test(values):
    (spread,) = spreads_of([values])
    found = interval(values, spread)
    centre, error = np.mean(values), stats.sem(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=centre, scale=error)
    assert np.log([found.low, found.value, found.high]) == pytest.approx([low, centre, high], abs=1e-9)


def test_more_degrees_of_freedom_give_a_shorter_interval():
    own, pooled = (interval([0.0, 0.1, -0.1], Spread(0.1, freedom)) for freedom in (2, 40))
    assert own.low < pooled.low < 1.0 < pooled.high < own.high


def normal_cells(rng, cells, processes, deviation):
    return [rng.normal(0.0, deviation, processes).tolist() for _ in range(cells)]


@pytest.mark.parametrize("scales", [(0.02, 0.02), (0.02, 0.03), (0.01, 0.06)])
def test_intervals_hold_as_often_as_they_say(scales):
    """Three processes a cell; the cells of a class may differ in their spread."""
    rng = np.random.default_rng(1)
    held = total = 0
    for _ in range(400):
        cells = [values for scale in scales for values in normal_cells(rng, 5, 3, scale)]
        intervals = [interval(values, spread) for values, spread in zip(cells, spreads_of(cells), strict=True)]
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
