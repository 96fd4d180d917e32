"""The full softmax that a layer is timed next to computes the same function, if the layer is a softmax too."""

from dataclasses import replace

import pytest

from vocabench.harness import registry
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.suites import Suite
from vocabench.harness.tasks import timing
from vocabench.harness.tasks.shared.paired import Pair
from vocabench.harness.tasks.shared.spec import baseline_of, zipf_spec

DEFAULTS = {name: setting.default for name, setting in timing.SETTINGS.items()}
CELL = Cell("s", "timing", "numpy", "full_softmax", 60, 8, 40, precision="float64", settings=DEFAULTS)
SOFTMAXES = sorted(
    name
    for name in registry.methods()
    if registry.definition(name).one_softmax and "bias" in registry.definition(name).options
)


def has_bias(cell):
    spec = baseline_of(cell, zipf_spec(cell))
    assert spec.method == "full_softmax"
    return "bias" in spec.parameter_shapes()


@pytest.mark.parametrize("method", SOFTMAXES)
def test_full_softmax_has_biases_if_the_softmax_next_to_it_has(method):
    assert len(SOFTMAXES) > 4
    cell = replace(CELL, method=method)
    assert has_bias(cell)
    assert not has_bias(replace(cell, options={"bias": False}))


@pytest.mark.parametrize("method", ["sohsm", "huffman", "class_hsm"])
def test_next_to_another_layer_the_setting_decides(method):
    cell = replace(CELL, method=method)
    assert has_bias(cell)
    assert not has_bias(replace(cell, settings=DEFAULTS | {"baseline_bias": False}))


def test_the_setting_leaves_a_second_copy_of_full_softmax_as_it_is():
    assert has_bias(replace(CELL, settings=DEFAULTS | {"baseline_bias": False}))


def test_all_layers_of_language_models_are_timed_next_to_full_softmax_without_biases():
    selection = Selection(["torch", "jax"])
    for devices in (None, 2):
        cells = Suite.load("llm").cells(replace(selection, devices=devices))
        assert {cell.method for cell in cells} >= {"full_softmax", "fused_softmax", "sohsm", "huffman"}
        assert not any(has_bias(replace(cell, vocab=60, dim=8)) for cell in cells)


def test_a_layer_is_timed_next_to_its_baseline(monkeypatch):
    pairs = []
    monkeypatch.setattr(Pair, "decoding", lambda pair, *_: pairs.append(pair) or [])
    settings = DEFAULTS | {"quantities": ["layer_seconds", "topk_seconds"], "processes": 1, "rounds": 6, "budget": 0.0}
    timing.run(replace(CELL, method="fused_softmax", options={"bias": False}, settings=settings), lambda text: None)
    (pair,) = pairs
    assert pair.plain.options == pair.spec.options == {"bias": False}
