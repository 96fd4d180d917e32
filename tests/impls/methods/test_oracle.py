"""The oracle's hand-written gradients against finite differences, and what a layer must always be."""

import os
import subprocess
import sys

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.models.language_model import LanguageModelConfig
from vocabench.impls.on_numpy.methods import sohsm
from vocabench.impls.optimizers import Optimizer

METHODS = registry.methods()
CASES = [(method, {}) for method in registry.methods()] + [
    ("sohsm", {"projection": projection, "bias": bias}) for projection in sohsm.PROJECTIONS for bias in (False, True)
]
CASES += [("nce", {"normaliser": "learned", "remove_hits": True}), ("sampled_softmax", {"remove_hits": False})]


def directional(function, point, direction, step=1e-6):
    return (function(point + step * direction) - function(point - step * direction)) / (2 * step)


@pytest.mark.parametrize(("method", "options"), CASES)
def test_gradients_are_the_derivatives_of_the_loss(method, options):
    counts_V = zipf_counts(31)
    layer = layers.create("numpy", method, counts=counts_V, dim=5, seed=3, **options)
    inputs = batch(counts_V, tokens=17, dim=5, seed=0)
    hidden_ND, targets_N = inputs.hidden_ND, inputs.targets_N
    _, dhidden_ND, grads = layer.loss_and_grads(hidden_ND, targets_N)
    rng = np.random.default_rng(1)
    way = rng.standard_normal(hidden_ND.shape)
    slope = directional(lambda h: layer.loss(h, targets_N), hidden_ND, way)
    assert slope == pytest.approx((dhidden_ND * way).sum(), abs=1e-7)
    params = layer.parameters()
    assert grads.keys() == params.keys()
    for name, value in params.items():
        way = rng.standard_normal(value.shape)

        def loss_at(moved, name=name):
            layer.load({**params, name: moved})
            return layer.loss(hidden_ND, targets_N)

        assert directional(loss_at, value, way) == pytest.approx((grads[name] * way).sum(), abs=1e-7)


@pytest.mark.parametrize(("method", "options"), CASES)
def test_probabilities_sum_to_one_and_targets_are_picked_from_them(method, options):
    counts_V = zipf_counts(57)
    layer = layers.create("numpy", method, counts=counts_V, dim=6, seed=1, **options)
    inputs = batch(counts_V, tokens=20, dim=6, seed=1)
    log_probs_NV = layer.log_probs(inputs.hidden_ND)
    assert np.exp(log_probs_NV).sum(axis=1) == pytest.approx(np.ones(20), abs=1e-12)
    picked_N = layer.target_log_probs(inputs.hidden_ND, inputs.targets_N)
    assert picked_N == pytest.approx(log_probs_NV[np.arange(20), inputs.targets_N], abs=1e-12)
    is_likelihood = layer.loss(inputs.hidden_ND, inputs.targets_N) == pytest.approx(-picked_N.mean(), abs=1e-12)
    assert is_likelihood != layer.spec.definition.train_only_loss


def test_the_language_models_gradients_by_one_small_step_of_sgd():
    """SGD without clipping moves each parameter by minus its gradient: the loss must fall by its squared norm."""
    counts_V = zipf_counts(23)
    rate = 1e-5
    optimizer = Optimizer(name="sgd", learning_rate=rate, weight_decay=0.0, clip_norm=0.0)
    for method in registry.methods():
        spec = layers.spec(method, counts=counts_V, dim=6, dtype="float64")
        # A model for each step: where the loss draws words, both draw the first ones.
        model, moved = (layers.create_network("numpy", spec, LanguageModelConfig(4, 6, optimizer)) for _ in "ab")
        text_BT = np.random.default_rng(0).integers(0, 23, (3, 8))
        before = model.parameters()
        first = float(model.step(text_BT[:, :-1], text_BT[:, 1:], carry=False))
        after = model.parameters()
        moved.load(after)
        second = float(moved.step(text_BT[:, :-1], text_BT[:, 1:], carry=False))
        squared = sum(float(((before[name] - after[name]) ** 2).sum()) for name in before) / rate**2
        assert (first - second) / rate == pytest.approx(squared, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_words_are_drawn_as_often_as_they_are_likely(method):
    from scipy import stats

    counts_V = zipf_counts(24)
    layer = layers.create("numpy", method, counts=counts_V, dim=6, seed=1)
    layer.load({name: 2 * value for name, value in layer.parameters().items()})
    hidden_D = np.random.default_rng(2).standard_normal(6)
    uniforms_NU = np.random.default_rng(3).random((20_000, layer.spec.draws))
    drawn_N = layer.sample(np.tile(hidden_D, (20_000, 1)), uniforms_NU)
    expected_V = 20_000 * np.exp(layer.log_probs(hidden_D[None])[0])
    assert stats.chisquare(np.bincount(drawn_N, minlength=24), expected_V).pvalue > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_a_beam_as_wide_as_the_vocabulary_is_exact_and_a_narrow_one_never_better(method):
    layer = layers.create("numpy", method, counts=zipf_counts(60), dim=6, seed=1)
    hidden_ND = np.random.default_rng(4).standard_normal((50, 6))
    exact_NK, ids_NK = layer.topk(hidden_ND, 7)
    wide_NK, wide_ids_NK = layer.beam(hidden_ND, 7, 60)
    np.testing.assert_allclose(wide_NK, exact_NK)
    assert wide_ids_NK.tolist() == ids_NK.tolist()
    narrow_NK, narrow_ids_NK = layer.beam(hidden_ND, 7, 7)
    assert (narrow_NK <= exact_NK + 1e-12).all()
    np.testing.assert_allclose(narrow_NK, np.take_along_axis(layer.log_probs(hidden_ND), narrow_ids_NK, 1))


_STARTS = """
import hashlib

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.options import Choice

for method in registry.methods():
    chosen = [(name, value) for name, option in registry.definition(method).options.items()
              if isinstance(option, Choice) for value in option.values]
    for name, value in chosen or [("", None)]:
        try:
            spec = layers.spec(method, counts=zipf_counts(40), dim=8, seed=3, **({name: value} if name else {}))
        except BadInput:  # a value that needs another option
            continue
        arrays = {**spec.structure, **spec.initial_parameters()}
        numbers = b"".join(key.encode() + arrays[key].tobytes() for key in arrays)
        print(method, name, value, hashlib.sha256(numbers).hexdigest())
"""


def test_structures_and_first_parameters_are_the_same_in_every_process():
    """Whatever Python makes of the order of sets, which differs from process to process."""
    first, second = (
        subprocess.run(
            [sys.executable, "-c", _STARTS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for seed in ("1", "4")
    )
    assert "sohsm init orthogonal" in " ".join(first)
    assert first == second
