"""A full softmax that is fitted to the scores of another layer."""

import numpy as np
import pytest

from vocabench.harness import layers
from vocabench.harness.measure.score_fit import fit_full_softmax

VOCAB, DIM = 60, 8


@pytest.mark.parametrize("method", ["huffman", "sohsm", "full_softmax", "fused_softmax"])
def test_a_fit_to_few_hidden_vectors_finds_the_same_words(method):
    spec = layers.spec(method, counts=np.arange(VOCAB, 0, -1), dim=DIM, dtype="float64")
    layer = layers.from_spec("numpy", spec)
    hidden_ND = np.random.default_rng(0).normal(size=(DIM, DIM))
    full = layers.from_spec("numpy", layers.spec("full_softmax", vocab=VOCAB, dim=DIM, dtype="float64"))
    full.load(fit_full_softmax(layer.log_probs(hidden_ND), hidden_ND))
    np.testing.assert_allclose(full.log_probs(hidden_ND), layer.log_probs(hidden_ND), atol=1e-9)
    assert np.array_equal(full.topk(hidden_ND, 5)[1], layer.topk(hidden_ND, 5)[1])


def test_a_full_softmax_without_biases_is_fitted_as_well():
    plain = layers.spec("full_softmax", vocab=VOCAB, dim=DIM, dtype="float64", bias=False)
    layer, hidden_ND = layers.from_spec("numpy", plain), np.random.default_rng(0).normal(size=(5 * DIM, DIM))
    fitted = fit_full_softmax(layer.log_probs(hidden_ND), hidden_ND, bias=False)
    assert fitted.keys() == {"weight"}
    weight_VD = layer.parameters()["weight"]
    np.testing.assert_allclose(fitted["weight"], weight_VD - weight_VD.mean(axis=0), atol=1e-9)


def test_a_full_softmax_is_recovered_from_many_hidden_vectors():
    layer = layers.from_spec("numpy", layers.spec("full_softmax", vocab=VOCAB, dim=DIM, dtype="float64"))
    hidden_ND = np.random.default_rng(0).normal(size=(5 * DIM, DIM))
    fitted = fit_full_softmax(layer.log_probs(hidden_ND), hidden_ND)
    weight_VD = layer.parameters()["weight"]
    np.testing.assert_allclose(fitted["weight"], weight_VD - weight_VD.mean(axis=0), atol=1e-9)
