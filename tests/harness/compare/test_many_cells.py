"""How often the gate is wrong, simulated: the same code is measured again in processes that differ."""

import numpy as np
import pytest
from scipy import stats

from tests.harness.compare.runs import cell, row, timed
from vocabench.harness.compare import gate
from vocabench.harness.compare.finding import BETTER, LEVEL, UNCLEAR, WORSE, Limits, judge
from vocabench.harness.compare.many_cells import Comparison, changes, holm, moderated
from vocabench.harness.compare.run_values import process_values, reduced
from vocabench.harness.run.rows import Measurement

CELLS, LIMITS = 100, Limits()
ROUNDS = 0.003  # standard deviation of a process's median, from its rounds
LEAST = float(np.log1p(LIMITS.cost))


def normal(rng, deviation, shape):
    return rng.normal(0, deviation, shape)


def two_speeds(rng, deviation, shape):
    """Processes settle at one of two speeds, around which they have a tenth of the variance."""
    return deviation * (0.9**0.5 * rng.choice([-1.0, 1.0], shape) + rng.normal(0, 0.1**0.5, shape))


def from_none_to_all(rng, deviation, shape):
    """Cells from one whose processes do not differ to one with the full deviation."""
    return rng.normal(0, 1, shape) * np.linspace(0, deviation, shape[0])[:, None]


def one_noisy(rng, deviation, shape):
    deviation_C = np.full(shape[0], 0.1 * deviation)
    deviation_C[0] = deviation
    return rng.normal(0, 1, shape) * deviation_C[:, None]


SCATTERS = (normal, two_speeds, from_none_to_all, one_noisy)


def judged(rng, deviation, runs, *, slower=None, scatter=normal, cells=CELLS):
    """Return the verdicts on cells of equal code, except those whose logarithms of a slowdown are in `slower`."""
    sides = [scatter(rng, deviation, (cells, runs)) + normal(rng, ROUNDS, (cells, runs)) for _ in range(2)]
    for number, log in (slower or {}).items():
        sides[1][number] += log
    before_CR, after_CR = (side.tolist() for side in sides)
    pairs = zip(before_CR, after_CR, strict=True)
    found = changes([Comparison([(-1, before), (1, after)], "training") for before, after in pairs])
    return [judge(change, LEAST, LIMITS.level)[0] for change in found]


def share(comparisons, is_so):
    return sum(is_so() for _ in range(comparisons)) / comparisons


@pytest.mark.many_cells
@pytest.mark.parametrize("scatter", SCATTERS)
@pytest.mark.parametrize("deviation", [0.0, 0.04, 0.06, 0.1])
def test_of_a_hundred_equal_cells_none_is_worse_in_95_of_100_comparisons(scatter, deviation):
    rng = np.random.default_rng(1)
    for runs in (2, 3, 5):
        assert share(150, lambda runs=runs: WORSE in judged(rng, deviation, runs, scatter=scatter)) <= 0.05


def test_a_slowdown_of_15_percent_is_found_in_nine_of_ten_comparisons():
    rng = np.random.default_rng(2)
    for deviation, slower in ((0.04, 1.15), (0.02, 1.10), (0.1, 1.4)):
        planted = {7: np.log(slower)}
        assert share(200, lambda d=deviation, s=planted: judged(rng, d, 5, slower=s)[7] == WORSE) >= 0.9


@pytest.mark.parametrize("cells", [1, 2, 10, CELLS])
def test_twice_the_time_is_always_worse_with_three_runs_and_the_same_time_is_not(cells):
    rng = np.random.default_rng(3)
    for deviation in (0.0, 0.02, 0.04, 0.06):
        for _ in range(100):
            assert judged(rng, deviation, 3, slower={0: np.log(2)}, cells=cells)[0] == WORSE
        alarms = [judged(rng, deviation, 3, cells=cells)[0] == WORSE for _ in range(100)]
        assert sum(alarms) <= (0 if cells == CELLS else 3)


def test_cells_that_became_faster_make_no_equal_cell_worse():
    """The method of Benjamini and Hochberg would call an equal cell worse in a tenth of these comparisons."""
    rng = np.random.default_rng(4)
    faster = dict.fromkeys(range(70), -0.5)
    verdicts = [judged(rng, 0.08, 3, slower=faster) for _ in range(200)]
    assert sum(WORSE in found for found in verdicts) / 200 <= 0.05
    assert np.mean([found[:70].count(BETTER) for found in verdicts]) > 65


def test_the_detectable_change_is_found_in_nine_of_ten_comparisons():
    rng = np.random.default_rng(5)
    for runs, deviation in ((3, 0.04), (5, 0.06)):
        detectable = []
        for _ in range(20):
            sides = [rng.normal(0, deviation, (CELLS, runs)).tolist() for _ in range(2)]
            pairs = zip(*sides, strict=True)
            found = changes([Comparison([(-1, before), (1, after)], "training") for before, after in pairs])
            detectable += [change.detectable(LEAST, LIMITS.level) for change in found]
        planted = {0: float(np.median(detectable))}
        found = share(300, lambda d=deviation, r=runs, s=planted: judged(rng, d, r, slower=s)[0] == WORSE)
        assert found == pytest.approx(0.9, abs=0.06)


def test_intervals_contain_the_change_in_95_of_100_comparisons():
    rng = np.random.default_rng(6)
    for scatter in (normal, two_speeds):
        hits = []
        for _ in range(30):
            sides = [scatter(rng, 0.05, (CELLS, 3)).tolist() for _ in range(2)]
            pairs = zip(*sides, strict=True)
            found = changes([Comparison([(-1, before), (1, after)], "training") for before, after in pairs])
            hits += [change.low <= 0 <= change.high for change in found]
        assert np.mean(hits) == pytest.approx(0.95, abs=0.03)


def test_a_single_cell_has_the_t_test():
    before, after = [0.1, 0.12, 0.15], [0.2, 0.22, 0.19, 0.25]
    (change,) = changes([Comparison([(-1, before), (1, after)])])
    expected = stats.ttest_ind(after, before)
    assert change.p == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert (change.low, change.high) == pytest.approx((interval.low, interval.high))
    (paired,) = changes([Comparison([(1, [b - a for a, b in zip(before, after, strict=False)])])])
    assert paired.p == pytest.approx(stats.ttest_rel(after[:3], before).pvalue)


def test_one_unit_a_side_has_no_error_unless_one_is_assumed():
    alone, assumed = changes([Comparison([(-1, [0.0]), (1, [1.0])], kind) for kind in ("", "x")])
    assert np.isnan(alone.error)
    assert alone.p == assumed.p == 1.0
    assert judge(alone, LEAST, LIMITS.level)[0] == UNCLEAR
    (change,) = changes([Comparison([(-1, [0.0]), (1, [1.0])], assumed=0.1)])
    assert change.assumed
    assert change.error == pytest.approx(0.1 * 2**0.5)
    assert judge(change, LEAST, LIMITS.level)[0] == WORSE
    other = Comparison([(-1, [0.0, 0.02, 0.04]), (1, [0.0, 0.02, 0.04])], "x")
    single, _ = changes([Comparison([(-1, [0.0]), (1, [1.0])], "x", assumed=0.1), other])
    assert not single.assumed
    assert single.error == pytest.approx(0.02 * 2**0.5)


def test_holm_agrees_with_its_definition():
    adjusted = holm(np.array([0.01, 0.04, 0.03, 0.005]))
    assert adjusted == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_equal_deviations_are_pooled_and_different_ones_are_less_so():
    rng = np.random.default_rng(7)
    freedom_C = np.full(400, 4.0)
    alike_C = 0.04**2 * rng.chisquare(4, 400) / 4
    variance_C, counted_C = moderated(alike_C, freedom_C)
    assert np.quantile(np.sqrt(variance_C), [0, 0.95]) == pytest.approx(0.04, rel=0.1)
    assert counted_C.min() > 50
    different_C = alike_C * np.where(np.arange(400) % 2, 1, 100)
    variance_C, counted_C = moderated(different_C, freedom_C)
    assert np.median(variance_C[::2]) > 2 * np.median(variance_C[1::2])
    assert counted_C.max() < 12


def measured(rng, deviation, *, slower=1.0, cells=30):
    """Return the rows of one run of several cells, each of one process."""
    rows = []
    for vocab in range(100, 100 + cells):
        own = 0.1 * np.exp(rng.normal(0, deviation) + rng.normal(0, 0.01, 4)) * (slower if vocab == 100 else 1.0)
        rows.append(row(cell(vocab=vocab), timed(np.full(4, 1.0), own)))
    return rows


def test_rows_are_judged_as_in_the_simulation():
    rng = np.random.default_rng(8)

    def runs(**more):
        return [stored for _ in range(3) for stored in measured(rng, 0.05, **more)]

    for _ in range(10):
        found = {finding.cell: finding for finding in gate.compare(runs(), runs(slower=2.0), LIMITS)}
        (worse,) = [name for name, finding in found.items() if finding.verdict == WORSE]
        assert "V=100 " in worse
        unclear = [finding for finding in found.values() if finding.verdict == UNCLEAR]
        assert unclear
        assert all(0.1 < (finding.detectable or 0.0) < 0.6 for finding in unclear)


def test_processes_of_one_run_are_units():
    rng = np.random.default_rng(9)

    def one_run(slower=0.0, processes=3):
        rows = []
        for vocab in range(100, 120):
            logs = rng.normal(1.0, 0.03, processes).repeat(4) - (slower if vocab == 100 else 0.0)
            detail = {"processes": [{"rounds": 4}] * processes}
            rows.append(row(cell(vocab=vocab), timed(np.exp(logs), np.ones(4 * processes), detail=detail)))
        return rows

    assert gate.verdict(gate.compare(one_run(), one_run(), LIMITS), strict=True) == gate.LEVEL_OR_BETTER
    (worst, *_) = gate.compare(one_run(), one_run(slower=0.3), LIMITS)
    assert (worst.verdict, "V=100 " in worst.cell) == (WORSE, True)
    assert gate.compare(one_run(processes=1), one_run(slower=0.3, processes=1), LIMITS)[0].verdict == UNCLEAR


def test_a_reduced_row_has_the_same_values():
    rng = np.random.default_rng(11)
    detail = {"processes": [{"rounds": 3}, {"rounds": 5}], "timing": 3, "curve": [{"step": 1}]}
    for chosen in (detail, {}, {"processes": [{"rounds": 3}]}):
        stored = row(cell(), timed(rng.uniform(1, 2, 8), rng.uniform(1, 2, 8), detail=chosen))
        (whole,), (part,) = stored.measurements, reduced(stored).measurements
        for relative in (True, False):
            values = process_values(whole, relative=relative)
            assert process_values(part, relative=relative) == pytest.approx(values)
            assert len(values) == (2 if chosen is detail else 1)
        assert len(part.samples) == len(values)
        assert part.detail.get("timing") == chosen.get("timing")
        assert "curve" not in part.detail


def test_short_and_long_decoding_have_their_own_deviation():
    """Long decoding is judged by its own small deviation, although short decoding scatters."""
    rng = np.random.default_rng(10)

    def rows(slower):
        rows = []
        for vocab in range(100, 120):
            for quantity, seconds, deviation in (("topk_seconds", 0.1, 0.002), ("topk1_seconds", 0.0001, 0.1)):
                own = seconds * slower * np.exp(rng.normal(0, deviation)) * np.ones(3)
                rows.append(row(cell(vocab=vocab), timed(seconds * np.ones(3), own, quantity)))
        return rows

    def runs(slower):
        runs = [rows(slower) for _ in range(3)]
        return [stored for run in runs for stored in run]

    before, after = runs(1.0), runs(1.07)
    by_quantity = {}
    for finding in gate.compare(before, after, LIMITS):
        by_quantity.setdefault(finding.quantity, set()).add(finding.verdict)
    assert by_quantity["topk_seconds"] == {WORSE}
    assert by_quantity["topk1_seconds"] <= {UNCLEAR, LEVEL}


def test_a_time_without_a_ratio_needs_three_runs():
    rows = [row(cell(task="summarization"), Measurement("step_seconds", value, [value])) for value in (1.0, 1.01, 0.99)]
    slow = [row(cell(task="summarization"), Measurement("step_seconds", 2 * value, [2 * value])) for value in (1, 1.01)]
    (finding,) = gate.compare(rows, slow, LIMITS)
    assert (finding.verdict, "3 runs a side" in finding.reason) == (UNCLEAR, True)
    (finding,) = gate.compare(rows, [*slow, slow[0]], LIMITS)
    assert finding.verdict == WORSE
