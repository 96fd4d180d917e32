"""Triplets of documents and their accuracy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabench.harness.measure.stats import Interval
from vocabench.harness.metrics import triplets
from vocabench.impls.errors import BadInput


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=4, max_size=40))
def test_triplets_have_two_documents_of_a_label_and_one_of_another(labels):
    labels_N = np.array(labels)
    sizes = np.bincount(labels_N)
    if (sizes > 1).sum() < 2:
        with pytest.raises(BadInput, match="labels with two documents or more: allowed: from 2"):
            triplets.draw(labels_N, 10)
        return
    drawn = triplets.draw(labels_N, 500)
    document_R, related_R, unrelated_R = drawn.ids_R3.T
    assert (document_R != related_R).all()
    assert (labels_N[document_R] == labels_N[related_R]).all()
    assert (labels_N[document_R] != labels_N[unrelated_R]).all()
    assert (sizes[labels_N[drawn.ids_R3]] > 1).all()
    assert drawn.documents == sizes[sizes > 1].sum()
    assert (drawn.labels, drawn.ignored) == ((sizes > 1).sum(), (sizes == 1).sum())


def test_draws_are_uniform_and_always_the_same():
    labels_N = np.array([1, 0, 0, 2, 1, 1, 0, 0, 3])
    drawn = triplets.draw(labels_N, 70_000)
    assert np.array_equal(drawn.ids_R3, triplets.draw(labels_N, 70_000).ids_R3)
    # Seven documents; three others of a label with four, two of one with three; the other label as unrelated ones.
    for document in (0, 1, 2, 4, 5, 6, 7):
        here = drawn.ids_R3[drawn.ids_R3[:, 0] == document]
        assert abs(len(here) - 10_000) < 500
        for column, other_label in ((1, False), (2, True)):
            others = [n for n in (0, 1, 2, 4, 5, 6, 7) if (labels_N[n] != labels_N[document]) == other_label]
            others = [n for n in others if n != document]
            counts = np.bincount(here[:, column], minlength=9)
            assert counts.sum() == counts[others].sum()
            assert np.abs(counts[others] / counts.sum() * len(others) - 1).max() < 0.1


def test_accuracy_counts_larger_cosines_and_half_of_the_ties():
    labels_N = np.array([0, 0, 1, 1])
    drawn = triplets.draw(labels_N, 4000)
    apart = np.array([[1.0, 0.1], [5.0, 0.0], [0.0, 2.0], [0.1, 1.0]])
    vectors_NE = np.random.default_rng(1).standard_normal((4, 3))
    unit_NE = vectors_NE / np.linalg.norm(vectors_NE, axis=1, keepdims=True)
    expected = np.mean([unit_NE[d] @ unit_NE[r] > unit_NE[d] @ unit_NE[u] for d, r, u in drawn.ids_R3])
    assert triplets.accuracy(vectors_NE, drawn).value == pytest.approx(expected)
    assert triplets.accuracy(apart, drawn) == Interval(1.0, 1.0, 1.0)
    assert triplets.accuracy(apart[[0, 2, 1, 3]], drawn).value < 0.3
    assert triplets.accuracy(np.zeros((4, 2)), drawn).value == 0.5
    assert triplets.accuracy(np.ones((4, 2)), drawn).value == 0.5


def test_random_vectors_are_at_chance():
    rng = np.random.default_rng(0)
    drawn = triplets.draw(rng.integers(0, 20, 2000), 10_000)
    found = triplets.accuracy(rng.standard_normal((2000, 30)), drawn)
    assert found.low < 0.5 < found.high
    assert 0.01 < found.high - found.low < 0.06


def test_vectors_that_are_not_finite_are_refused():
    with pytest.raises(BadInput, match="document vectors contain NaN"):
        triplets.accuracy(np.full((4, 2), np.nan), triplets.draw(np.array([0, 0, 1, 1]), 5))
