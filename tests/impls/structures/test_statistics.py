"""Equation 9 in its three readings, against updating one sample at a time."""

import numpy as np
import pytest

from vocabench.impls.structures.statistics import StatisticsWeights, statistics_dtype


def apply(weights, q_V, targets_N, samples_N):
    """One batch, as a framework does it, for a single cluster."""
    batch = weights.batch(targets_N)
    sums_N = np.zeros(len(targets_N))
    np.add.at(sums_N, batch.segment, samples_N)
    real = batch.words < len(q_V)
    words = batch.words[real]
    q_V[words] = batch.keep[real] * q_V[words] + batch.share[real] * sums_N[real]


@pytest.mark.parametrize(("smoothing", "keep"), [("ema", 1 - 1 / 4), ("printed", 1 / 4)])
def test_one_sample_moves_by_its_weight(smoothing, keep):
    weights, q_V = StatisticsWeights(np.array([4, 9]), smoothing), np.array([-2.0, -1.0])
    apply(weights, q_V, np.array([0]), np.array([-6.0]))
    assert q_V == pytest.approx([keep * -2.0 + (1 - keep) * -6.0, -1.0])


def test_running_is_the_mean_at_first_and_a_moving_average_later():
    count, rng = 5, np.random.default_rng(0)
    weights, q_V, samples = StatisticsWeights(np.array([count, 1]), "running"), np.zeros(2), []
    for _ in range(count - 1):
        samples.append(rng.normal())
        apply(weights, q_V, np.array([0]), np.array(samples[-1:]))
        assert q_V[0] == pytest.approx(np.mean(samples), rel=1e-6)
    for _ in range(30):
        apply(weights, q_V, np.array([0]), np.array([1.0]))
    before = q_V[0]
    apply(weights, q_V, np.array([0]), np.array([0.0]))
    assert q_V[0] == pytest.approx(before * (1 - 1 / count), rel=1e-6)


def test_a_word_repeated_in_a_batch_counts_as_often():
    together, apart = (StatisticsWeights(np.array([10, 10]), "ema") for _ in range(2))
    q_together, q_apart = np.array([-3.0, 0.0]), np.array([-3.0, 0.0])
    apply(together, q_together, np.array([0, 0, 0]), np.array([-1.0, -1.0, -1.0]))
    for _ in range(3):
        apply(apart, q_apart, np.array([0]), np.array([-1.0]))
    assert q_together == pytest.approx(q_apart, rel=1e-6)


def test_as_printed_a_word_seen_once_never_moves():
    weights, q_V = StatisticsWeights(np.array([1, 1]), "printed"), np.array([-3.0, 0.0])
    apply(weights, q_V, np.array([0]), np.array([-9.0]))
    assert q_V[0] == -3.0


def test_padding_moves_nothing():
    weights, q_V = StatisticsWeights(np.array([3, 3]), "running"), np.array([-3.0, -4.0])
    apply(weights, q_V, np.array([-100, -100]), np.array([-9.0, -9.0]))
    assert q_V.tolist() == [-3.0, -4.0]


def test_a_million_words_keep_half_precision():
    assert statistics_dtype(44_000, 210) == np.float32
    assert statistics_dtype(1_000_000, 1000) == np.float16
