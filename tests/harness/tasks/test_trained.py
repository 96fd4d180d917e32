"""Trained layers are timed in several processes, next to a full softmax with weights of the same kind."""

import numpy as np
import pytest

from vocabench.harness import layers
from vocabench.harness.measure.workload import Batch
from vocabench.harness.run.cells import Cell
from vocabench.harness.tasks.shared import trained
from vocabench.harness.tasks.shared.paired import Pair

VOCAB, DIM, ROWS = 60, 8, 6


def trained_layer(method, processes, **options):
    """Return a layer of random weights far from the initial ones, and hidden vectors."""
    settings = {"processes": processes, "rounds": 6 if processes == 1 else 2, "budget": 0.0, "baseline_bias": True}
    cell = Cell("s", "trained_layer", "numpy", method, VOCAB, DIM, ROWS, precision="float64", settings=settings)
    spec = layers.spec(method, counts=np.arange(VOCAB, 0, -1), dim=DIM, dtype="float64", **options)
    rng = np.random.default_rng(3)
    params = {name: rng.normal(size=value.shape) for name, value in spec.initial_parameters().items()}
    inputs = Batch(rng.normal(size=(ROWS, DIM)), rng.integers(0, VOCAB, ROWS))
    return trained.TrainedLayer(cell, spec, params), params, inputs


def test_a_trained_layer_is_timed_in_several_processes():
    layer, _, inputs = trained_layer("huffman", 2)
    found, checked = layer.training(inputs, lambda text: None)
    assert checked["verdict"] == "agree"
    decoded = layer.decoding(inputs.hidden_ND)
    times = [found, *(measurement for measurement in decoded if measurement.ratio is not None)]
    assert [measurement.quantity for measurement in times][1:3] == ["topk_seconds", "topk1_seconds"]
    for measurement in times:
        assert [process["rounds"] for process in measurement.processes] == [2, 2]
        assert measurement.detail["spread"]["freedom"] == 1


@pytest.mark.parametrize("options", [{}, {"bias": False}], ids=str)
@pytest.mark.parametrize(
    ("method", "weights"), [("huffman", "fitted"), ("fused_softmax", "fitted"), ("full_softmax", "trained")]
)
def test_full_softmax_decodes_with_the_scores_of_the_layer(method, weights, options, monkeypatch):
    options = {} if method == "huffman" else options
    layer, params, inputs = trained_layer(method, 1, **options)
    pairs = []
    monkeypatch.setattr(Pair, "decoding", lambda pair, *_: pairs.append(pair) or [])
    layer.decoding(inputs.hidden_ND)
    (pair,) = pairs
    assert pair.weights == weights
    assert pair.plain.options == {"bias": options.get("bias", True)}
    log_probs = [side.log_probs(inputs.hidden_ND) for side in (pair.baseline, pair.layer)]
    np.testing.assert_allclose(*log_probs, atol=1e-8)
    assert all(np.array_equal(pair.layer.parameters()[name], value) for name, value in params.items())
    if method == "full_softmax":
        assert all(np.array_equal(pair.baseline.parameters()[name], value) for name, value in params.items())
