"""Verdicts on quality by seeds."""

import numpy as np
import pytest

from tests.harness.compare.runs import by_seed, cell, perplexity, row
from vocabench.harness.compare import gate
from vocabench.harness.run.rows import Measurement

LIMITS = gate.Limits()


def judged(before, after):
    (finding,) = [finding for finding in gate.compare(before, after, LIMITS) if finding.quantity]
    return finding


def test_one_seed_a_side_is_unclear_however_large_the_difference():
    """The same perplexity on two machines differed by more than a hundredth, with nothing changed."""
    for value in (100.5, 101.2, 98.0, 140.0):
        finding = judged([perplexity(100.0)], [perplexity(value)])
        assert finding.verdict == gate.UNCLEAR
        assert "one seed a side" in finding.reason
    assert judged([perplexity(100.0)], [perplexity(100.0)]).verdict == gate.LEVEL


def test_repeating_a_seed_adds_no_evidence():
    finding = judged([perplexity(100.0)] * 5, [perplexity(105.0)] * 5)
    assert finding.verdict == gate.UNCLEAR
    assert "one seed a side" in finding.reason


def test_differences_are_paired_by_seed():
    """Seeds differ by far more than the change, but in the same way on both sides."""
    seeds = np.array([100.0, 120.0, 90.0, 140.0, 110.0])
    noise = np.array([1.001, 0.999, 1.002, 0.998, 1.0])
    worse = judged(by_seed(seeds), by_seed(seeds * 1.03 * noise))
    assert worse.verdict == gate.WORSE
    assert "5 seeds, paired" in worse.reason
    assert (worse.before, worse.change) == (pytest.approx(112.0), pytest.approx(0.03, abs=0.002))
    assert judged(by_seed(seeds * 1.03 * noise), by_seed(seeds)).verdict == gate.BETTER
    assert judged(by_seed(seeds), by_seed(seeds * noise)).verdict == gate.LEVEL
    apart = [perplexity(value, seed=seed) for seed, value in zip(range(5, 10), seeds * 1.03, strict=True)]
    unpaired = judged(by_seed(seeds), apart)
    assert unpaired.verdict == gate.UNCLEAR
    assert "5 and 5 seeds" in unpaired.reason
    assert (unpaired.detectable or 0.0) > 0.3


def test_seeds_that_only_one_side_has_are_left_out():
    finding = judged(by_seed([100.0, 101.0, 99.0]), by_seed([103.0, 104.1, 102.0, 500.0]))
    assert (finding.verdict, "3 seeds, paired" in finding.reason) == (gate.WORSE, True)


def test_a_seed_without_a_finite_figure_is_worse():
    findings = gate.compare(by_seed([100.0, 101.0, 99.0]), by_seed([100.0, float("nan"), 99.0]), LIMITS)
    assert (findings[0].verdict, findings[0].reason) == (gate.WORSE, "not finite")
    assert [finding.verdict for finding in findings[1:]] == [gate.LEVEL]


def test_scores_are_judged_by_seeds_and_not_by_their_samples():
    rng = np.random.default_rng(8)
    samples = rng.random(200)

    def scored(factor, seed):
        values = (factor * samples).tolist()
        measurement = Measurement("rouge1_f1", float(np.mean(values)), values)
        return row(cell(task="summarization", seed=seed), measurement)

    assert judged([scored(1.0, 0)], [scored(0.9, 0)]).verdict == gate.UNCLEAR
    jitter = (1.0, 1.01, 0.99, 1.005)
    before = [scored(factor, seed) for seed, factor in enumerate(jitter)]
    after = [scored(0.9 * factor, seed) for seed, factor in enumerate(reversed(jitter))]
    assert judged(before, after).verdict == gate.WORSE
    assert judged(after, before).verdict == gate.BETTER


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_methods_are_rarely_worse_and_a_tenth_is_found_with_five_seeds(seeds):
    """Perplexities of twenty methods, whose deviation between seeds is 0.6 %, and 7 % for one of them."""
    rng = np.random.default_rng(seeds)
    deviation_C = np.full(20, 0.006)
    deviation_C[3] = 0.07

    def side(factor_C):
        value_CS = 100 * factor_C[:, None] * np.exp(rng.normal(0, 1, (20, seeds)) * deviation_C[:, None])
        return [one for vocab, value_S in enumerate(value_CS, start=1000) for one in by_seed(value_S, vocab=vocab)]

    same, slower = np.ones(20), np.ones(20)
    slower[5] = 1.1
    alarms = [gate.compare(side(same), side(same), LIMITS)[0].verdict == gate.WORSE for _ in range(40)]
    assert sum(alarms) <= 2
    if seeds == 5:
        found = [gate.compare(side(same), side(slower), LIMITS)[0] for _ in range(20)]
        assert sum(finding.verdict == gate.WORSE and "V=1,005" in finding.cell for finding in found) >= 18
