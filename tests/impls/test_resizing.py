"""Vocabularies that grow and shrink: what a layer has learned stays."""

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.resizing import carried_over, resized

pytestmark = pytest.mark.many_cells

DIM = 8


def trained(spec):
    """Return parameters unlike the initial ones."""
    rng = np.random.default_rng(5)
    return {name: value + rng.standard_normal(value.shape) for name, value in spec.initial_parameters().items()}


def log_probs(spec, params):
    layer = layers.from_spec("numpy", spec)
    layer.load(params)
    return layer.log_probs(np.random.default_rng(0).standard_normal((4, DIM)))


@pytest.mark.parametrize("method", registry.methods("numpy"))
def test_a_layer_of_the_same_counts_stays_the_same(method):
    spec = layers.spec(method, counts=zipf_counts(40), dim=DIM, dtype="float64")
    params = trained(spec)
    again = resized(spec, spec.counts)
    np.testing.assert_array_equal(log_probs(spec, params), log_probs(again, carried_over(spec, again, params)))


@pytest.mark.parametrize("vocab", [24, 55])
@pytest.mark.parametrize("method", registry.methods("numpy"))
def test_any_vocabulary_gives_a_distribution(method, vocab):
    spec = layers.spec(method, counts=zipf_counts(40), dim=DIM, dtype="float64")
    other = resized(spec, zipf_counts(vocab))
    log_NV = log_probs(other, carried_over(spec, other, trained(spec)))
    assert log_NV.shape == (4, vocab)
    np.testing.assert_allclose(np.exp(log_NV).sum(axis=1), 1)


@pytest.mark.parametrize("method", ["full_softmax", "class_hsm", "sohsm", "d_softmax", "adaptive_softmax"])
def test_words_keep_their_vectors(method):
    spec = layers.spec(method, counts=zipf_counts(40), dim=DIM, dtype="float64")
    params = trained(spec)
    other = resized(spec, np.concatenate([spec.counts, [0, 0, 0]]))
    made = carried_over(spec, other, params)
    kept = sum(
        int((made[name] == params[name][row]).reshape(len(made[name]), -1).all(axis=1).any())
        for name in params
        if name.endswith("weight")
        for row in range(len(params[name]))
    )
    rows = sum(len(value) for name, value in params.items() if name.endswith("weight"))
    assert kept >= 0.9 * rows


@pytest.mark.parametrize("method", ["huffman", "binary_tree"])
def test_a_tree_separates_old_words_as_before(method):
    """The odds of two old words change little if new words are rare."""
    spec = layers.spec(method, counts=zipf_counts(40), dim=DIM, dtype="float64")
    params = trained(spec)
    other = resized(spec, np.concatenate([spec.counts, [0]]))
    made = carried_over(spec, other, params)
    before_NV, after_NV = log_probs(spec, params), log_probs(other, made)
    same_V = np.isclose(before_NV, after_NV[:, :40]).all(axis=0)
    assert same_V.sum() >= 38  # all but the word that shares its leaf with the new one, and its neighbour


def test_words_that_a_layer_spells_are_needed_anew():
    words = [f"w{number}" for number in range(40)]
    spec = layers.spec("cnn_softmax", counts=zipf_counts(40), dim=DIM, words=words)
    with pytest.raises(BadInput, match="words"):
        resized(spec, zipf_counts(41))
    assert resized(spec, zipf_counts(41), words=[*words, "new"]).vocab == 41


@pytest.mark.parametrize("framework", registry.installed_frameworks())
def test_words_that_were_never_seen_are_scored_by_their_spelling(framework):
    """Old words keep their vectors whatever characters are new, and words of the same spelling get the same score."""
    words = [f"w{number}" for number in range(40)]
    spec = layers.spec("cnn_softmax", counts=zipf_counts(40), dim=DIM, words=words, dtype="float64")
    params = trained(spec)
    params["bias"] = np.arange(40.0)
    further = ["a new word", "Zebra", "w7"]  # with characters before, between and after those of the old words
    other = resized(spec, [*zipf_counts(40), 0, 0, 0], words=[*words, *further])
    made = carried_over(spec, other, params)
    np.testing.assert_array_equal(made["correction_weight"][40:], 0)
    assert made["bias"][40:].tolist() == [params["bias"][spec.counts == spec.counts.min()].mean()] * 3
    hidden_ND = np.random.default_rng(0).standard_normal((7, DIM))
    before, after = (layers.from_spec(framework, each) for each in (spec, other))
    before.load(params)
    after.load(made)
    before_NV, after_NV = before.log_probs(hidden_ND), after.log_probs(hidden_ND)
    np.testing.assert_allclose(after_NV[:, :40] - after_NV[:, :1], before_NV - before_NV[:, :1], atol=1e-8)
    alike = carried_over(spec, other, params | {"correction_weight": 0 * params["correction_weight"]})
    after.load(alike | {"bias": 0 * made["bias"]})
    after_NV = after.log_probs(hidden_ND)
    np.testing.assert_allclose(after_NV[:, 42], after_NV[:, 7], atol=1e-9)
    assert not np.allclose(after_NV[:, 40], after_NV[:, 41])
