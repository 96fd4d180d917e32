"""GloVe: counts, gradients, Adagrad and fits against plain computations; the two sides of a model combined."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from vocabench.harness.word_vectors import glove
from vocabench.harness.word_vectors.combining import COMBINATIONS, combined
from vocabench.impls.errors import BadInput


def ignore(line):
    pass


def test_cooccurrences_are_counted_both_ways_by_distance():
    counts = glove.cooccurrences(np.array([0, 1, 2, 0]), 3, 2).toarray()
    np.testing.assert_allclose(counts, [[0, 1.5, 1.5], [1.5, 0, 1], [1.5, 1, 0]])


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 30))
def test_cooccurrences_are_those_of_two_loops(ids, window):
    expected = np.zeros((6, 6))
    for place, word in enumerate(ids):
        for other, context in enumerate(ids):
            if 0 < abs(place - other) <= window:
                expected[word, context] += 1 / abs(place - other)
    np.testing.assert_allclose(glove.cooccurrences(np.array(ids, np.int32), 6, window).toarray(), expected)


def batch(rng, vocab=4, pairs=9):
    """Pairs of which some have a row or a column in common."""
    row_P, column_P = rng.integers(0, vocab, (2, pairs))
    return glove.Pairs(row_P, column_P, rng.standard_normal(pairs), rng.random(pairs))


def sides(rng, vocab=4, dim=3):
    """The rows (v, b, 1) and (u, 1, c)."""
    input_VE, output_VE = rng.standard_normal((2, vocab, dim + 2))
    input_VE[:, -1] = output_VE[:, -2] = 1.0
    return input_VE, output_VE


def loss_as_printed(input_VE, output_VE, pairs):
    total = 0.0
    for i, j, log_x, weight in zip(pairs.row_P, pairs.column_P, pairs.log_P, pairs.weight_P, strict=True):
        product = sum(v * u for v, u in zip(input_VE[i, :-2], output_VE[j, :-2], strict=True))
        total += weight * (product + input_VE[i, -2] + output_VE[j, -1] - log_x) ** 2
    return total


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_finite_differences_of_the_printed_loss(seed):
    rng = np.random.default_rng(seed)
    values, pairs, epsilon = sides(rng), batch(rng), 1e-6
    loss, *found = glove.gradients(*values, pairs)
    assert loss == pytest.approx(loss_as_printed(*values, pairs))
    for number, (gradient, fixed) in enumerate(zip(found, (-1, -2), strict=True)):
        used = sorted(set((pairs.row_P, pairs.column_P)[number].tolist()))
        assert gradient.row_R.tolist() == used
        np.testing.assert_array_equal(gradient.before_RE, values[number][used])
        numeric_VE = np.zeros_like(values[number])
        for place in np.ndindex(numeric_VE.shape):
            ends = []
            for step in (epsilon, -epsilon):
                moved = [value.copy() for value in values]
                moved[number][place] += step
                ends.append(loss_as_printed(moved[0], moved[1], pairs))
            numeric_VE[place] = (ends[0] - ends[1]) / (2 * epsilon)
        columns = [column for column in range(5) if column != 5 + fixed]
        np.testing.assert_allclose(2 * gradient.grad_RE[:, columns], numeric_VE[used][:, columns], atol=1e-6)
        assert not numeric_VE[sorted({0, 1, 2, 3} - set(used))].any()


def plain_fit(counts, dim, epochs, most, seed, size):
    """GloVe with dense arrays in float64: gradients summed one by one, Adagrad on all rows."""
    rng = np.random.default_rng([seed, 9])
    vocab = counts.shape[0]
    (row_P, column_P), times_P = counts.coords, counts.data
    vectors = [(rng.random((vocab, dim + 1)) - 0.5) / dim for _ in range(2)]  # with the bias at the end
    squares = [np.ones_like(side) for side in vectors]
    losses = []
    for _ in range(epochs):
        order, total = rng.permutation(len(times_P)), 0.0
        for start in range(0, len(order), size):
            grads = [np.zeros_like(side) for side in vectors]
            for pair in order[start : start + size]:
                i, j = row_P[pair], column_P[pair]
                v, u = vectors[0][i], vectors[1][j]
                error = v[:-1] @ u[:-1] + v[-1] + u[-1] - np.log(times_P[pair])
                weight = min(1.0, (times_P[pair] / most) ** 0.75)
                total += weight * error**2
                grads[0][i] += weight * error * np.append(u[:-1], 1.0)
                grads[1][j] += weight * error * np.append(v[:-1], 1.0)
            for side, square, grad in zip(vectors, squares, grads, strict=True):
                side -= 0.05 * grad / np.sqrt(square)
                square += grad**2
        losses.append(total / len(times_P))
    return vectors, losses


def planted(rng, vocab=30, dim=3):
    """Counts whose logarithms are products of vectors plus biases."""
    left, right = 0.7 * rng.standard_normal((2, vocab, dim))
    biases = 0.5 * rng.standard_normal((2, vocab))
    return sparse.coo_array(np.exp(left @ right.T + biases[0][:, None] + biases[1]))


def test_a_fit_is_that_of_plain_loops(monkeypatch):
    monkeypatch.setattr(glove, "_BATCH", 50)
    monkeypatch.setattr(glove, "_ROWS_AT_ONCE", 7)
    counts = planted(np.random.default_rng(1), vocab=12)
    found = glove.fit(counts, 12, 4, epochs=5, most=2.0, seed=3, progress=ignore)
    (input_VE, output_VE), losses = plain_fit(counts, 4, 5, 2.0, 3, 50)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-4)
    np.testing.assert_allclose(found.input_VD, input_VE[:, :-1], atol=1e-5)
    np.testing.assert_allclose(found.output_VD, output_VE[:, :-1], atol=1e-5)
    np.testing.assert_allclose(found.input_bias_V, input_VE[:, -1], atol=1e-5)
    np.testing.assert_allclose(found.output_bias_V, output_VE[:, -1], atol=1e-5)


def test_counts_of_low_rank_are_recovered(monkeypatch):
    monkeypatch.setattr(glove, "_BATCH", 100)
    counts = planted(np.random.default_rng(0))
    found = glove.fit(counts, 30, 3, epochs=400, most=0.1, seed=0, progress=ignore)
    estimate = found.input_VD @ found.output_VD.T + found.input_bias_V[:, None] + found.output_bias_V
    log_counts = np.log(counts.toarray())
    assert np.abs(estimate - log_counts).max() < 0.1 * log_counts.std()
    assert found.losses[-1] < 1e-3 * found.losses[0]


def test_the_loss_falls_and_a_seed_determines_the_fit():
    ids_T = np.random.default_rng(0).zipf(1.5, 4000) % 50
    counts = glove.cooccurrences(ids_T, 50, 3)
    lines: list[str] = []
    found, again, other = (
        glove.fit(counts, 50, 5, epochs=6, most=100.0, seed=seed, progress=lines.append) for seed in (0, 0, 1)
    )
    assert all(later < earlier for earlier, later in zip(found.losses, found.losses[1:], strict=False))
    assert found.losses[-1] < 0.5 * found.losses[0]
    assert lines[5] == f"glove epoch 6/6 loss {found.losses[5]:.4f}"
    assert [point["epoch"] for point in found.curve] == [1, 2, 3, 4, 5, 6]
    assert [point["train_loss"] for point in found.curve] == found.losses
    np.testing.assert_array_equal(found.input_VD, again.input_VD)
    assert not np.allclose(found.input_VD, other.input_VD)
    assert {array.dtype for array in (found.input_VD, found.output_VD, found.input_bias_V)} == {np.dtype(np.float32)}


def test_a_text_without_pairs_is_refused():
    counts = glove.cooccurrences(np.array([2]), 5, 10)
    with pytest.raises(BadInput, match="GloVe has no pairs of words: allowed: a text of two words or more"):
        glove.fit(counts, 5, 3, epochs=1, most=100.0, seed=0, progress=ignore)


def test_the_sides_are_combined():
    input_VD, output_VD = np.random.default_rng(0).standard_normal((2, 4, 3))
    results = {name: combined(input_VD, output_VD, name) for name in COMBINATIONS}
    np.testing.assert_array_equal(results["input"], input_VD)
    np.testing.assert_allclose(results["sum"], input_VD + output_VD)
    np.testing.assert_array_equal(results["concatenate"], np.hstack([input_VD, output_VD]))
    with pytest.raises(BadInput, match=r"unknown combination of .* 'summ': did you mean 'sum'"):
        combined(input_VD, output_VD, "summ")
