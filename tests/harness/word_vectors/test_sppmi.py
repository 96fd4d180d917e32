"""SPPMI-SVD against counts by hand and a dense decomposition."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from vocabench.harness.word_vectors import pmi, sppmi
from vocabench.impls.errors import BadInput


def counted(ids, window, documents=None):
    """Count pairs of positions one by one."""
    pairs = Counter()
    for i, word in enumerate(ids):
        for j in range(max(0, i - window), min(len(ids), i + window + 1)):
            if j != i and (documents is None or documents[i] == documents[j]):
                pairs[word, ids[j]] += 1
    return pairs


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=30),
    st.integers(1, 6),
    st.booleans(),
)
def test_pairs_are_counted_like_one_by_one(positions, window, by_document):
    positions.sort(key=lambda pair: pair[1])
    ids, documents = [word for word, _ in positions], [document for _, document in positions]
    counts = pmi.pair_counts(
        np.array(ids, dtype=np.int32), 6, window, np.array(documents, dtype=np.int64) if by_document else None
    )
    expected = counted(ids, window, documents if by_document else None)
    words, contexts = (axis.tolist() for axis in counts.tocoo().coords)
    assert dict(zip(zip(words, contexts, strict=True), counts.tocoo().data.tolist(), strict=True)) == expected


def test_pmi_of_a_text_worked_out_by_hand():
    # a b a c with window 1: ab ba, ba ab, ac ca: #(a, b) = 2, #(a, c) = 1, #(a) = 3, #(b) = 2, #(c) = 1, n = 6.
    shifted = pmi.shifted_pmi(pmi.pair_counts(np.array([0, 1, 0, 2]), 3, 1), 1.5).toarray()
    expected = np.zeros((3, 3))
    expected[0, 1] = expected[1, 0] = math.log(2 * 6 / (3 * 2) / 1.5)
    expected[0, 2] = expected[2, 0] = math.log(1 * 6 / (3 * 1) / 1.5)
    np.testing.assert_allclose(shifted, expected, atol=1e-14)
    assert expected[0, 1] == pytest.approx(0.2876820724517809)  # log 4/3


def dense_sppmi(ids, vocab, window, negatives):
    pairs = counted(ids, window)
    matrix = np.zeros((vocab, vocab))
    total = sum(pairs.values())
    for (word, context), count in pairs.items():
        words = sum(n for (w, _), n in pairs.items() if w == word)
        contexts = sum(n for (_, c), n in pairs.items() if c == context)
        matrix[word, context] = max(0.0, math.log(count * total / (words * contexts) / negatives))
    return matrix


@pytest.mark.parametrize("power", sppmi.POWERS)
@pytest.mark.parametrize("negatives", [1, 1.2])
def test_vectors_are_those_of_a_dense_decomposition(power, negatives):
    ids = np.random.default_rng(1).choice(9, size=60, p=np.arange(1, 10) / 45)
    left, singular, _ = np.linalg.svd(dense_sppmi(ids.tolist(), 9, 2, negatives))
    vectors_VD = sppmi.vectors(ids, 9, 4, window=2, negatives=negatives, power=power, seed=0)
    assert singular[3] - singular[4] > 1e-3  # so that the first four directions are determined
    expected = left[:, :4] * singular[:4] ** power
    np.testing.assert_allclose(vectors_VD @ vectors_VD.T, expected @ expected.T, atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(vectors_VD, axis=0), singular[:4] ** power, atol=1e-9)


def test_the_result_depends_on_no_seed_where_it_is_determined():
    ids = np.random.default_rng(2).integers(0, 12, 200)
    first, second = (sppmi.vectors(ids, 12, 3, window=3, negatives=1, power=0.5, seed=seed) for seed in (0, 1))
    np.testing.assert_allclose(first, second, atol=1e-9)
    again = sppmi.vectors(ids, 12, 3, window=3, negatives=1, power=0.5, seed=0)
    assert np.array_equal(first, again)


def test_columns_beyond_the_rank_are_zero():
    matrix = sparse.csr_array(np.outer([1.0, 2, 0, 0, 0], [1.0, 2, 0, 0, 0]))
    vectors_VD = sppmi.factorise(matrix, 3, 0.0, 0)
    np.testing.assert_allclose(vectors_VD[:, 0], np.array([1, 2, 0, 0, 0]) / math.sqrt(5), atol=1e-12)
    assert not vectors_VD[:, 1:].any()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dim": 4}, "dim=4: allowed: a whole number from 1 to 3"),
        ({"dim": 0}, "dim=0"),
        ({"power": 0.3}, "power=0.3: allowed: 0.0, 0.5, 1.0"),
        ({"window": 0}, "window=0"),
        ({"negatives": 0}, "negatives=0"),
        ({"negatives": 1000}, "no pair has a PMI above log k"),
        ({"vocab": 3}, "word ids from 0 to 3: allowed: from 0 to 2"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(changed, message):
    arguments = {"vocab": 4, "dim": 2, "window": 1, "negatives": 1, "power": 0.5, "seed": 0} | changed
    with pytest.raises(BadInput, match=message) as raised:
        sppmi.vectors(np.array([0, 1, 2, 3, 1, 0]), **arguments)
    assert "\n" not in str(raised.value)
