"""Pairs of words that follow each other, the vectors that they give, and layers whose classes start from them."""

import numpy as np
import pytest

from vocabench.harness import layers
from vocabench.impls.errors import BadInput
from vocabench.impls.structures import bigrams


def test_pairs_of_a_text():
    pairs = bigrams.count_pairs(np.array([2, 0, 2, 0, 0, 3], dtype=np.int32), 4)
    assert pairs.tolist() == [[0, 0, 1], [0, 2, 1], [0, 3, 1], [2, 0, 2]]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (np.zeros((0, 3)), r"pairs has shape \(0, 3\): allowed: \(P, 3\) with P from 1"),
        ([[1, 2]], r"pairs has shape \(1, 2\)"),
        (
            [[0, 1, 1], [0, 4, 1]],
            r"pairs\[1\]=\[0, 4, 1\]: allowed: word before and word, .* from 0 to 3, and",
        ),
        ([[-1, 0, 1]], r"pairs\[0\]=\[-1, 0, 1\]"),
        ([[1, 0, 0]], r"pairs\[0\]=\[1, 0, 0\].* a count from 1"),
        ([[1, 0, 1.5]], r"pairs\[0\]=\[1.0, 0.0, 1.5\]"),
        ([[1, 0, 2**61]] * 2, r"counts sum beyond 2\*\*62"),
    ],
)
def test_pairs_that_cannot_be_are_refused(pairs, message):
    with pytest.raises(BadInput, match=message):
        bigrams.check_pairs(np.array(pairs), 4)


def text_of_classes(classes, words, tokens, seed=0):
    """Ids of a text in which each class of words follows certain classes alone, and the class (V,) of each word."""
    rng = np.random.default_rng(seed)
    class_V = rng.permutation(np.arange(classes * words) % classes)
    members_CW = np.stack([np.flatnonzero(class_V == group) for group in range(classes)])
    class_T = np.cumsum(rng.integers(1, 3, tokens)) % classes  # the next class, or the one after it
    return members_CW[class_T, rng.integers(words, size=tokens)], class_V


def test_vectors_have_the_products_of_the_information_reduced():
    text_T, class_V = text_of_classes(5, 6, 700)
    vocab = len(class_V)
    seen_VV = np.zeros((vocab, vocab))
    np.add.at(seen_VV, (text_T[:-1], text_T[1:]), 1)
    information = []
    for seen in (seen_VV.T, seen_VV):  # the words before, and after
        expected = np.outer(seen.sum(axis=1), seen.sum(axis=0)) / seen.sum()
        information.append(np.log(np.maximum(np.divide(seen, expected, where=expected > 0, out=np.ones_like(seen)), 1)))
    left_VE, values_E, _ = np.linalg.svd(np.concatenate(information, axis=1), full_matrices=False)
    counts_V = np.bincount(text_T, minlength=vocab)
    vectors_VE = bigrams.vectors(bigrams.count_pairs(text_T, vocab), counts_V)
    np.testing.assert_allclose(vectors_VE @ vectors_VE.T, left_VE * values_E @ left_VE.T, atol=1e-9)


def test_vectors_of_a_large_vocabulary_are_its_main_directions():
    vocab = 1200  # more than there are columns for
    text_T = np.random.default_rng(1).zipf(1.3, 40_000) % vocab
    counts_V = np.bincount(text_T, minlength=vocab)
    vectors_VE = bigrams.vectors(bigrams.count_pairs(text_T, vocab), counts_V)
    assert vectors_VE.shape == (vocab, 64)
    products = vectors_VE.T @ vectors_VE  # the columns are orthogonal
    np.testing.assert_allclose(products, np.diag(np.diag(products)), atol=1e-6 * products.max())


def test_a_word_next_to_none_has_no_direction():
    vectors_VE = bigrams.vectors(np.array([[0, 1, 3], [1, 0, 2], [1, 1, 1]]), np.array([3, 3, 4]))
    assert not vectors_VE[2].any()
    assert vectors_VE[:2].any()
    nothing_VE = bigrams.vectors(np.array([[0, 0, 5]]), np.array([5, 1]))  # as often as expected: no information
    assert nothing_VE.shape == (2, 0)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("sohsm", {"start": "bigram", "clusters": 5, "gamma": 1.0, "budget": 1.0}),
        ("class_hsm", {"bins": "bigram", "classes": 5}),
    ],
)
def test_words_with_the_same_neighbours_share_a_class(method, options):
    text_T, class_V = text_of_classes(5, 40, 60_000)
    counts_V = np.bincount(text_T, minlength=len(class_V))
    pairs = bigrams.count_pairs(text_T, len(class_V))
    best = 0.0
    for seed in range(3):  # k-means may start badly
        spec = layers.spec(method, counts=counts_V, dim=4, seed=seed, pairs=pairs, **options)
        met_CC = np.zeros((5, 5))
        np.add.at(met_CC, (spec.structure["cluster"], class_V), 1)
        best = max(best, met_CC.max(axis=1).sum() / len(class_V))
    assert best > 0.95


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("sohsm", {"start": "bigram"}, "pairs is missing with start='bigram': allowed: pairs with 'bigram' alone"),
        ("sohsm", {"pairs": [[0, 1, 1]]}, "pairs is given with start='random'"),
        ("sohsm", {"start": "bigram", "pairs": [[0, 30, 1]]}, r"pairs\[0\]=\[0, 30, 1\]"),
        (
            "sohsm",
            {"start": "bigram", "pairs": [[0, 1, 1]], "cluster": np.arange(30) % 6},
            "cluster is given with start='bigram': allowed: one of the two",
        ),
        ("class_hsm", {"bins": "bigram"}, "pairs is missing with bins='bigram'"),
        ("class_hsm", {"pairs": [[0, 1, 1]]}, "pairs is given with bins='sqrt_count'"),
    ],
)
def test_layers_say_what_they_take(method, options, message):
    with pytest.raises(BadInput, match=message):
        layers.spec(method, counts=np.arange(30, 0, -1), dim=4, **options)
