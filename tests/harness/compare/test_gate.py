"""Verdicts of the regression gate: what is worse, what is noise, and what cannot be compared."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.compare.runs import FACTORS, MACHINE, by_seed, cell, perplexity, row, run, runs, timed, verdicts
from vocabench.harness.compare import gate
from vocabench.harness.quantities import NOT_JUDGED, QUANTITIES
from vocabench.harness.run.rows import Measurement

LIMITS = gate.Limits()


def outcome(before, after, strict=False, limits=LIMITS):
    return gate.verdict(gate.compare(before, after, limits), strict=strict)


def test_a_slowdown_of_ten_percent_is_detected_without_false_alarms():
    rng = np.random.default_rng(0)
    for trial in range(20):
        same = gate.compare(runs(rng, FACTORS), runs(rng, FACTORS), LIMITS)
        assert gate.verdict(same, strict=True) == gate.LEVEL_OR_BETTER, trial
        slowed = gate.compare(runs(rng, FACTORS), runs(rng, FACTORS | {"sohsm": 0.11}), LIMITS)
        assert verdicts(slowed)["sohsm", "layer_seconds"] == gate.WORSE, trial
        assert slowed[0].change == pytest.approx(0.1, abs=0.03)
        assert (slowed[0].low or 0.0) > LIMITS.cost


def test_several_runs_per_side_detect_a_slowdown_on_a_drifting_machine():
    """The machine's speed differs by a third between processes, and full softmax by 1 % relative to other layers."""
    rng = np.random.default_rng(13)

    def drifting(factors):
        per_run = [{**factors, "full_softmax": np.exp(rng.normal(0, 0.01))} for _ in range(5)]
        return [one for changed in per_run for one in run(rng, changed, drift=0.2, machine=np.exp(rng.normal(0, 0.3)))]

    for trial in range(20):
        before = drifting(FACTORS)
        assert outcome(before, drifting(FACTORS)) == gate.LEVEL_OR_BETTER, trial
        assert outcome(before, drifting(FACTORS | {"sohsm": 0.12})) == gate.WORSE, trial


def test_a_hundred_noisy_cells_raise_no_alarm():
    rng = np.random.default_rng(1)
    for _ in range(5):
        before, after = (
            [one for vocab in range(100, 134) for one in run(rng, FACTORS, rounds=7, noise=0.1, vocab=vocab)]
            for _ in range(2)
        )
        findings = gate.compare(before, after, LIMITS)
        assert len(findings) == 102
        assert not {finding.verdict for finding in findings} & {gate.WORSE, gate.BETTER}


@pytest.mark.parametrize("machine", [0.5, 2.0])
def test_the_speed_of_the_machine_is_not_attributed_to_the_code(machine):
    rng = np.random.default_rng(2)
    findings = verdicts(gate.compare(runs(rng, FACTORS), runs(rng, FACTORS, machine=machine), LIMITS))
    assert findings["sohsm", "layer_seconds"] == findings["huffman", "layer_seconds"] == gate.LEVEL
    assert findings["full_softmax", "layer_seconds"] == gate.UNCLEAR


def test_full_softmax_is_judged_by_the_times_of_the_other_layers():
    rng = np.random.default_rng(3)
    drift_free = {"noise": 0.005, "rounds": 41}
    before, after = run(rng, FACTORS, **drift_free), run(rng, FACTORS | {"full_softmax": 1.6}, **drift_free)
    assert verdicts(gate.compare(before, after, LIMITS))["full_softmax", "layer_seconds"] == gate.WORSE
    assert verdicts(gate.compare(after, before, LIMITS))["full_softmax", "layer_seconds"] == gate.BETTER


def test_times_of_two_definitions_are_not_compared():
    rng = np.random.default_rng(5)
    times = {side: 0.1 * np.exp(rng.normal(0, 0.01, 21)) for side in ("baseline", "own")}

    def rows(slower, detail):
        measured = timed(times["baseline"], times["own"] * slower, detail=detail), Measurement("perplexity", 100.0)
        return [row(cell(framework=framework), *measured) for framework in ("torch", "jax")]

    before, after, other = rows(1.0, {}), rows(1.5, {"timing": 3}), rows(1.5, {"timing": 1})
    findings = gate.compare(before, after, LIMITS)
    assert {finding.verdict for finding in findings if finding.quantity == "layer_seconds"} == {gate.NOT_COMPARABLE}
    assert {finding.verdict for finding in findings if finding.quantity == "perplexity"} == {gate.LEVEL}
    assert {finding.verdict for finding in gate.compare(before, other, LIMITS)} == {gate.WORSE, gate.LEVEL}
    findings = gate.between_frameworks(before, after, "jax", "torch", LIMITS)
    assert {finding.quantity: finding.verdict for finding in findings} == {
        "layer_seconds": gate.NOT_COMPARABLE,
        "perplexity": gate.LEVEL,
    }


def test_peaks_of_two_definitions_are_not_compared():
    before, after = ([row(cell(), Measurement("peak_bytes", 4e8, detail=detail))] for detail in ({}, {"counting": 2}))
    assert [finding.verdict for finding in gate.compare(before, after, LIMITS)] == [gate.NOT_COMPARABLE]
    assert [finding.verdict for finding in gate.compare(after, after, LIMITS)] == [gate.LEVEL]


def test_absolute_times_of_two_machines_are_not_compared():
    rng = np.random.default_rng(4)
    other = runs(rng, FACTORS, where=MACHINE | {"cpu": "Another CPU"})
    findings = gate.compare(runs(rng, FACTORS), other, LIMITS)
    by_method = verdicts(findings)
    assert by_method["full_softmax", "layer_seconds"] == gate.NOT_COMPARABLE
    assert by_method["sohsm", "layer_seconds"] == gate.LEVEL
    elsewhere = run(rng, {"full_softmax": 1.0}, where={"cpu": "Another CPU"})
    assert outcome(run(rng, {"full_softmax": 1.0}), elsewhere) == gate.NOT_COMPARABLE


def test_one_process_a_side_counts_as_if_processes_differed_by_a_tenth_or_more():
    """In the second run, full softmax measured 1.4 times slower than itself, so other ratios are as uncertain."""
    rng = np.random.default_rng(5)
    before, after = run(rng, {"sohsm": 0.1}), run(rng, {"sohsm": 0.2})
    assert outcome(before, after) == gate.WORSE
    (sohsm,) = gate.compare(before, run(rng, {"sohsm": 0.12}), LIMITS)
    assert sohsm.verdict == gate.UNCLEAR
    assert sohsm.reason == "one process a side: a deviation of 10 % between processes is assumed"
    assert sohsm.detectable == pytest.approx(np.exp(np.log(1.05) + (1.96 + 1.28) * 0.1 * 2**0.5) - 1, abs=0.02)
    base = 0.1 * np.exp(rng.normal(0, 0.01, 21))
    floor = row(cell("full_softmax"), timed(1.4 * base, base))
    findings = gate.compare([*before, floor], [*after, floor], LIMITS)
    (sohsm,) = [finding for finding in findings if "sohsm" in finding.cell]
    assert sohsm.verdict == gate.UNCLEAR
    assert "a deviation of 3" in sohsm.reason
    assert (sohsm.detectable or 0.0) > 1.0


def test_differences_between_runs_are_not_attributed_to_the_code():
    rng = np.random.default_rng(7)
    fast, slow = run(rng, {"sohsm": 0.1}), run(rng, {"sohsm": 0.13})
    assert outcome([*fast, *slow, *fast], [*slow, *fast, *slow]) == gate.LEVEL_OR_BETTER
    assert outcome(runs(rng, {"sohsm": 0.1}), runs(rng, {"sohsm": 0.13})) == gate.WORSE
    assert outcome([*fast, *slow, *fast], runs(rng, {"sohsm": 0.3})) == gate.WORSE
    failed = row(cell("sohsm"), status="error", message="boom")
    for order in ([*fast, failed], [failed, *fast]):
        assert outcome(fast, order) == gate.WORSE


def test_one_process_with_a_slow_full_softmax_does_not_change_other_verdicts():
    rng = np.random.default_rng(12)
    before, after = run(rng, FACTORS), run(rng, FACTORS)
    moved = 0.25 * np.exp(rng.normal(0, 0.01, 21))
    after[1] = row(cell("sohsm"), timed(moved, 0.01 * np.exp(rng.normal(0, 0.01, 21))))
    for pair in ((before, after), (after, before)):
        (sohsm,) = [finding for finding in gate.compare(*pair, LIMITS) if "sohsm" in finding.cell]
        assert sohsm.verdict == gate.UNCLEAR
        assert "a deviation of 9" in sohsm.reason


def test_pooled_runs_with_another_machine_are_not_compared():
    rng = np.random.default_rng(18)
    after = [run(rng, {"full_softmax": 1.0}, where=where) for where in (MACHINE, {"cpu": "Another CPU"}, MACHINE)]
    before = run(rng, {"full_softmax": 1.0})
    assert outcome(before, [one for rows in after for one in rows]) == gate.NOT_COMPARABLE


def test_unpaired_times_need_several_runs():
    """The machine may have been busy during the steps of a training run, for example."""
    rng = np.random.default_rng(15)

    def steps(seconds):
        samples = (seconds * np.exp(rng.normal(0, 0.02, 40))).tolist()
        return row(cell(task="summarization"), Measurement("step_seconds", seconds, samples))

    assert gate.compare([steps(1.0)], [steps(1.3)], LIMITS)[0].verdict == gate.UNCLEAR
    before, after = ([steps(seconds * factor) for seconds in (1.0, 1.02, 0.98)] for factor in (1.0, 1.3))
    assert gate.compare(before, after, LIMITS)[0].verdict == gate.WORSE
    assert gate.compare(before, before, LIMITS)[0].verdict != gate.WORSE


def test_a_time_of_zero_is_pooled_with_the_other_runs():
    rows = [row(cell(), Measurement("compile_seconds", value, [value])) for value in (0.0, 1.0, 1.1)]
    assert outcome(rows, rows) == gate.LEVEL_OR_BETTER


@pytest.mark.parametrize(
    ("quantity", "before", "after", "expected"),
    [
        ("expanded_share", 0.5, 0.501, gate.LEVEL),
        ("expanded_share", 0.5, 0.6, gate.WORSE),
        ("beam_recall", 0.9, 0.8, gate.WORSE),
        ("beam_recall", 0.8, 0.9, gate.BETTER),
        ("beam_recall", 0.0, 0.0, gate.LEVEL),
        ("beam_recall", 0.5, float("nan"), gate.WORSE),
        ("beam_recall", float("nan"), 0.5, gate.BETTER),
        ("peak_bytes", 100e6, 103e6, gate.LEVEL),
        ("peak_bytes", 1e6, 3e6, gate.LEVEL),
        ("peak_bytes", 100e6, 120e6, gate.WORSE),
        ("train_seconds", 1.0, 2.0, gate.UNCLEAR),
        ("agreement_error", 0.1, 0.9, gate.LEVEL),
    ],
)
def test_figures_without_training_have_a_direction(quantity, before, after, expected):
    pair = [row(cell(), Measurement(quantity, value)) for value in (before, after)]
    (finding,) = gate.compare([pair[0]], [pair[1]], LIMITS)
    assert finding.verdict == expected


def test_agreement_lost_is_worse_and_gained_is_better():
    agrees = row(cell(), status="ok", agreement={"verdict": "agree"})
    lost = row(cell(), status="disagree", agreement={"verdict": "disagree", "disagreements": ["grad_hidden: 3.0"]})
    (finding,) = gate.compare([agrees], [lost], LIMITS)
    assert (finding.verdict, finding.quantity, finding.reason) == (gate.WORSE, "agreement", "grad_hidden: 3.0")
    assert outcome([lost], [agrees]) == gate.LEVEL_OR_BETTER
    assert gate.compare([lost], [agrees], LIMITS)[0].verdict == gate.BETTER
    assert not gate.compare([lost], [lost], LIMITS)


@pytest.mark.parametrize("status", ["oom", "error", "timeout"])
def test_a_new_failure_is_worse(status):
    failed = row(cell(task="language_modelling"), status=status, message="what happened")
    (finding,) = gate.compare([perplexity(1.0)], [failed], LIMITS)[:1]
    assert (finding.verdict, finding.reason) == (gate.WORSE, f"{status}: what happened")
    assert outcome([failed], [perplexity(1.0)]) == gate.LEVEL_OR_BETTER
    assert outcome([failed], [failed]) == gate.NOT_COMPARABLE


def test_missing_cells_are_reported_and_count_only_when_strict():
    kept, gone = perplexity(1.0), perplexity(1.0, seed=1)
    findings = gate.compare([kept, gone], [kept, perplexity(1.0, seed=2)], LIMITS)
    assert sorted(finding.verdict for finding in findings) == [gate.LEVEL, gate.MISSING, gate.NEW]
    assert gate.verdict(findings, strict=False) == gate.LEVEL_OR_BETTER
    assert gate.verdict(findings, strict=True) == gate.WORSE
    assert outcome([gone], [kept]) == gate.NOT_COMPARABLE


def test_a_quantity_that_is_no_longer_measured_is_missing():
    both = row(cell(task="language_modelling"), Measurement("perplexity", 1.0), Measurement("beam_recall", 1.0))
    findings = gate.compare([both], [perplexity(1.0)], LIMITS)
    assert [(finding.verdict, finding.quantity) for finding in findings] == [
        (gate.MISSING, "beam_recall"),
        (gate.LEVEL, "perplexity"),
    ]


@pytest.mark.parametrize(
    ("field", "first", "second"),
    [("dataset_sha256", "a" * 64, "b" * 64), ("device", "cpu", "cuda"), ("precision", "float32", "bfloat16")],
)
def test_another_text_device_or_precision_is_not_comparable(field, first, second):
    shared = {"dataset": "pydoc"}
    pair = [perplexity(1.0, **{**shared, field: value}) for value in (first, second)]
    findings = gate.compare([pair[0]], [pair[1]], LIMITS)
    assert findings[0].verdict == gate.NOT_COMPARABLE
    assert field in findings[0].reason
    assert gate.verdict(findings, strict=False) == gate.NOT_COMPARABLE


def test_suite_effort_and_new_settings_do_not_change_the_identity():
    full = {"rounds": 11, "budget": 2.0, "decode_rows": 128}
    before = row(cell(settings=full), Measurement("expanded_share", 0.5))
    named = dataclasses.replace(cell(settings={"rounds": 21}), suite="cpu")
    assert outcome([before], [row(named, Measurement("expanded_share", 0.5))], strict=True) == gate.LEVEL_OR_BETTER
    other = cell(settings={"decode_rows": 64})
    assert outcome([before], [row(other, Measurement("expanded_share", 0.5))]) == gate.NOT_COMPARABLE


def test_frameworks_are_compared_by_their_ratio():
    rng = np.random.default_rng(9)

    def both(jax, machine=1.0, runs=3):
        quiet = {"noise": 0.01, "rounds": 41, "machine": machine}
        rows = []
        for _ in range(runs):
            rows += run(rng, FACTORS, **quiet)
            rows += run(rng, {"full_softmax": jax, "sohsm": 0.1 * jax}, framework="jax", **quiet)
        return [without_drift(one) for one in rows]

    def without_drift(one):
        """Replace the samples: the drift of absolute times is not cancelled by a pair."""
        (own,) = one.measurements
        samples = (own.value * np.exp(rng.normal(0, 0.01, 41))).tolist()
        return dataclasses.replace(one, measurements=[dataclasses.replace(own, samples=samples)])

    moved = gate.between_frameworks(both(1.0), both(2.0, machine=3.0), "jax", "torch", LIMITS)
    assert {finding.verdict for finding in moved} == {gate.WORSE}
    assert {finding.unit for finding in moved} == {"x"}
    assert len(moved) == 2  # huffman was measured in one framework only
    back = gate.between_frameworks(both(1.0), both(2.0), "torch", "jax", LIMITS)
    assert {finding.verdict for finding in back} == {gate.BETTER}
    once = gate.between_frameworks(both(1.0, runs=2), both(2.0), "jax", "torch", LIMITS)
    assert {finding.verdict for finding in once} == {gate.UNCLEAR}
    assert all("3 runs a side" in finding.reason for finding in once)
    rows = both(1.5)
    still = gate.between_frameworks(rows, rows, "jax", "torch", LIMITS)
    assert {finding.change for finding in still} == {0.0}
    assert [finding.before for finding in still] == pytest.approx([1.5] * 2, rel=0.2)
    assert not gate.between_frameworks(rows, rows, "jax", "tensorflow", LIMITS)


def test_speed_differences_between_processes_are_not_attributed_to_frameworks():
    """Each layer of each framework is timed in its own process, and the speed of processes differs by a tenth."""
    rng = np.random.default_rng(19)

    def runs(number, jax):
        rows = []
        for _ in range(number):
            for framework, factor in (("torch", 1.0), ("jax", jax)):
                rows += run(rng, {"sohsm": 0.1}, framework=framework, machine=factor * np.exp(rng.normal(0, 0.1)))
        return rows

    def worse(number, jax):
        pairs = [(runs(number, 1.0), runs(number, jax)) for _ in range(25)]
        outcomes = [gate.between_frameworks(*pair, "jax", "torch", LIMITS)[0].verdict for pair in pairs]
        return outcomes.count(gate.WORSE)

    assert [worse(number, 1.0) for number in (1, 3, 5)] == [0, 0, 0]
    assert worse(3, 2.0) > 20
    assert worse(5, 1.3) > 8


def test_frameworks_are_compared_by_their_perplexity():
    torch, jax = [100.0, 101.0, 99.0, 100.5], [100.5, 100.0, 99.5, 100.0]

    def both(factor, seeds=4):
        slower = [factor * value for value in jax]
        return by_seed(torch[:seeds], framework="torch") + by_seed(slower[:seeds], framework="jax")

    (finding,) = gate.between_frameworks(both(1.0), both(1.05), "jax", "torch", LIMITS)
    assert (finding.verdict, finding.change) == (gate.WORSE, pytest.approx(0.05))
    (finding,) = gate.between_frameworks(both(1.0, seeds=1), both(1.05, seeds=1), "jax", "torch", LIMITS)
    assert finding.verdict == gate.UNCLEAR
    assert "one seed a side" in finding.reason


rounds = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=25)
MIRROR = {gate.WORSE: gate.BETTER, gate.BETTER: gate.WORSE}


def paired_rows(baseline, own):
    size = min(len(baseline), len(own))
    return [row(cell(), timed(baseline[:size], own[:size]))]


@given(rounds, rounds, rounds, rounds)
@settings(deadline=None, max_examples=60)
def test_exchanging_the_sides_mirrors_the_verdict(baseline, own, later_baseline, later_own):
    before, after = paired_rows(baseline, own), paired_rows(later_baseline, later_own)
    (there,), (back,) = (gate.compare(*pair, LIMITS) for pair in ((before, after), (after, before)))
    assert back.verdict == MIRROR.get(there.verdict, there.verdict)
    assert (1 + (back.low or 0.0)) * (1 + (there.high or 0.0)) == pytest.approx(1.0)


@given(rounds, rounds, st.floats(1.0, 10.0))
@settings(deadline=None, max_examples=60)
def test_a_slowdown_is_never_better_and_a_larger_one_never_milder(baseline, own, factor):
    before = paired_rows(baseline, own)
    slow = paired_rows(baseline, [factor * time for time in own])
    slower = paired_rows(baseline, [2 * factor * time for time in own])
    (one,), (two,) = (gate.compare(before, after, LIMITS) for after in (slow, slower))
    assert one.verdict != gate.BETTER
    assert one.change == pytest.approx(factor - 1, abs=1e-6)
    assert not (one.verdict == gate.WORSE and two.verdict != gate.WORSE)


@given(rounds, rounds)
@settings(deadline=None, max_examples=30)
def test_a_run_is_never_worse_than_itself(baseline, own):
    rows = paired_rows(baseline, own)
    assert outcome(rows, rows) == gate.LEVEL_OR_BETTER


# The real-time factor has no unit, but is a time.
QUALITIES = sorted(
    name for name, (unit, _, _) in QUANTITIES.items() if unit == "1" and name not in {"rtf", *NOT_JUDGED}
)


@given(st.sampled_from(QUALITIES), st.floats(0.1, 100))
@settings(deadline=None, max_examples=40)
def test_quality_follows_the_direction_of_the_quantity(quantity, value):
    seeds = value * np.array([1.0, 1.01, 0.99])
    (finding,) = gate.compare(
        by_seed(seeds, quantity=quantity), by_seed(seeds * [1.9, 2.0, 2.1], quantity=quantity), LIMITS
    )
    assert finding.verdict == (gate.WORSE if QUANTITIES[quantity][1] == "lower" else gate.BETTER)
