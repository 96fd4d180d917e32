"""When a training run is evaluated, when it ends, and which model is scored."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabench.harness.tasks.shared.learning_curve import BEST, LAST, LearningCurve

PERPLEXITIES = st.lists(st.integers(1, 5).map(float), min_size=1, max_size=12)


def trained(perplexities, *, checkpoint=LAST, patience=0):
    """Return the curve of a run with one step per epoch, whose state is the number of the step."""
    settings = {"epochs": len(perplexities), "evaluations": 1, "checkpoint": checkpoint, "patience": patience}
    step = 0
    curve = LearningCurve(settings, lambda: step)
    curve.start(1)
    for step, perplexity in enumerate(perplexities, 1):
        curve.add_loss(1.0)
        assert curve.is_due(step)
        curve.evaluate(step, lambda value=perplexity: {"perplexity": value})
        if curve.has_ended:
            break
    return curve


@given(PERPLEXITIES)
def test_without_patience_all_epochs_are_trained_and_the_last_model_is_scored(perplexities):
    curve = trained(perplexities)
    assert [point["perplexity"] for point in curve.points] == perplexities
    assert (curve.scored, curve.state_to_restore) == (curve.points[-1], None)


@given(PERPLEXITIES, st.integers(0, 4))
def test_the_best_model_is_the_first_with_the_lowest_perplexity(perplexities, patience):
    curve = trained(perplexities, checkpoint=BEST, patience=patience)
    reached = perplexities[: len(curve.points)]
    best = reached.index(min(reached)) + 1
    assert curve.detail() == {"validation_perplexity": min(reached), "scored_step": best, "curve": curve.points}
    assert curve.state_to_restore == (None if best == len(reached) else best)


@given(PERPLEXITIES, st.integers(1, 4))
def test_training_ends_when_patience_is_exhausted_and_not_before(perplexities, patience):
    ended = len(trained(perplexities, patience=patience).points)

    def waited(points):
        return points - 1 - perplexities.index(min(perplexities[:points]))

    assert all(waited(points) < patience for points in range(1, ended))
    assert waited(ended) == patience or ended == len(perplexities)


@pytest.mark.parametrize(("updates", "total", "due"), [(0, 20, [3, 7, 10, 13, 17, 20]), (8, 8, [3, 7, 8])])
def test_evaluations_are_spread_over_epochs_and_follow_the_last_step(updates, total, due):
    curve = LearningCurve({"epochs": 2, "evaluations": 3, "checkpoint": LAST, "patience": 0}, lambda: None)
    curve.start(10, updates)
    assert curve.total == total
    assert [step for step in range(1, total + 1) if curve.is_due(step)] == due


def test_a_loss_that_is_not_finite_ends_the_run():
    curve = LearningCurve({"epochs": 1, "evaluations": 1, "checkpoint": LAST, "patience": 0}, lambda: None)
    curve.start(1)
    curve.add_loss(float("nan"))
    with pytest.raises(FloatingPointError, match="training loss is nan at step 1"):
        curve.evaluate(1, lambda: {"perplexity": 1.0})


def test_evaluations_are_not_training_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    curve = LearningCurve({"epochs": 1, "evaluations": 1, "checkpoint": LAST, "patience": 0}, lambda: None)

    def scores():
        clock[0] += 100
        return {"perplexity": 1.0}

    curve.start(1)
    clock[0] += 2
    with curve.paused():
        clock[0] += 50
    clock[0] += 1
    curve.add_loss(1.0)
    curve.evaluate(1, scores)
    assert curve.seconds == curve.points[0]["seconds"] == 3
