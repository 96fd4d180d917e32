"""Gradients next to the kinks of rectifiers and maxima, where rounding decides which of two gradients is computed."""

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.tolerances import UNITS, tolerance
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.calls import PLAIN, Objective

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
# With the rounding of parameters that moves some arguments across a kink.
FORMS = [
    ("sohsm", {}, 2.0**-7),
    ("sohsm", {"projection": "residual", "bias": True}, 2.0**-7),
    ("sohsm", {"projection": "cluster_residual"}, 2.0**-7),
    ("cnn_softmax", {"filters": 32}, 2.0**-12),
]


def oracle(method, options, vocab, dim):
    return layers.create("numpy", method, counts=zipf_counts(vocab), dim=dim, dtype="float64", **options)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("method", "options", "off"), FORMS)
def test_the_bounds_hold_for_parameters_that_are_rounded(method, options, off, weighted):
    """Apart from kinks, the gradients move by no more than a few times as much as the parameters."""
    layer, moved = oracle(method, options, 400, 24), oracle(method, options, 400, 24)
    inputs = batch(layer.spec.counts, tokens=40, dim=24, seed=1)
    rng = np.random.default_rng(0)
    moved.load(
        {name: value * (1 + off * rng.uniform(-1, 1, value.shape)) for name, value in layer.parameters().items()}
    )
    weight_N = rng.random(40) if weighted else None
    smoothing = 0.2 if weighted else 0.0
    wanted = {"token_weight": weight_N, "label_smoothing": smoothing}
    _, dhidden_ND, grads = layer.loss_and_grads(inputs.hidden_ND, inputs.targets_N, **wanted)
    _, moved_dhidden_ND, moved_grads = moved.loss_and_grads(inputs.hidden_ND, inputs.targets_N, **wanted)
    objective = Objective(label_smoothing=smoothing) if weighted else PLAIN
    kinks_ND, kinks = layer.kinks(inputs.hidden_ND, inputs.targets_N, 8 * off, objective, weight_N)
    pairs = {name: (grads[name], moved_grads[name], kinks.get(name, 0.0)) for name in grads}
    pairs["hidden"] = dhidden_ND, moved_dhidden_ND, kinks_ND
    jumps = []
    for ours, theirs, bound in pairs.values():
        smooth = 4 * off * np.abs(ours).max()
        assert (np.abs(ours - theirs) <= bound + smooth).all()
        jumps.append((np.abs(ours - theirs) > smooth).any())
    assert any(jumps)  # otherwise there was nothing to bound


@pytest.mark.parametrize(
    ("method", "options"),
    [("sohsm", {"projection": "linear"}), ("sohsm", {"projection": "none"}), ("full_softmax", {})],
)
def test_a_layer_without_kinks_has_no_bounds(method, options):
    layer = oracle(method, options, 50, 8)
    inputs = batch(layer.spec.counts, tokens=9, dim=8, seed=1)
    bound_ND, bounds = layer.kinks(inputs.hidden_ND, inputs.targets_N, 0.1)
    assert (bound_ND.any(), bounds) == (False, {})


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_large_layer_agrees_although_rounding_changes_some_maxima(framework):
    counts_V = zipf_counts(6000)
    layer = layers.create(framework, "cnn_softmax", counts=counts_V, dim=8, dtype="float32", seed=0)
    inputs = batch(counts_V, tokens=16, dim=8, seed=0)
    found = agreement.check_layer(layer, inputs, k=5, whole_vocabulary=False)
    assert [str(c) for c in found if not c.agrees] == []


def test_kinks_allow_no_more_than_they_cause():
    """The tolerance of a float32 gradient hardly grows: few arguments are as close to a kink as a rounding."""
    layer = oracle("cnn_softmax", {}, 12_045, 32)
    inputs = batch(layer.spec.counts, tokens=16, dim=32, seed=0)
    grads = layer.loss_and_grads(inputs.hidden_ND, inputs.targets_N)[2]
    kinks = layer.kinks(inputs.hidden_ND, inputs.targets_N, tolerance("kink", "float32", 32))[1]
    assert UNITS["float32"].value < max(kinks[name].max() / np.abs(grads[name]).max() for name in kinks) < 0.01
