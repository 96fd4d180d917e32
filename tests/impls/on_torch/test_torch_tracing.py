"""Layers in traces: torch.compile without graph breaks, and torch.export for any batch size."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from tests.impls.on_torch.native_layers import VOCAB, batch, extra_of, gradients, spec_of
from vocabench.impls.on_torch import adapter
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.ops.topk import best_columns

pytestmark = pytest.mark.many_cells

# Methods that are traced in different ways, in the preferred form and in one without kernels.
METHODS = (
    *("adaptive_log_softmax", "adaptive_softmax", "binary_tree", "class_hsm", "d_softmax"),
    *("full_softmax", "fused_softmax", "huffman", "nce", "sohsm"),
)
PORTABLE = {"huffman": "pairs_512", "class_hsm": "tiles", "sohsm": "loop"}
FORMS = [*((method, "") for method in METHODS), *PORTABLE.items()]
VECTORS = np.random.default_rng(0).normal(size=(VOCAB, 3))
OPTIONS = {"binary_tree": {"tree": "adaptive_eps", "eps": 0.4, "vectors": VECTORS}}  # words have several codes
TOKENS = torch.export.Dim("tokens", min=2, max=4096)


@pytest.fixture(autouse=True)
def compiling(monkeypatch):
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    yield
    torch._dynamo.reset()


class LossAndTopK(torch.nn.Module):
    def __init__(self, layer: OutputLayer) -> None:
        super().__init__()
        self.layer: Any = layer

    def forward(self, hidden, targets, extra):
        return self.layer(hidden, targets, **extra), *self.layer.topk(hidden, 5)


def assert_alike(results, expected):
    torch.testing.assert_close(results[:2], expected[:2])
    assert results[2].tolist() == expected[2].tolist()


@pytest.mark.many_cells
@pytest.mark.parametrize(("method", "form"), FORMS)
def test_a_compiled_layer_has_the_results_and_gradients_of_eager_mode(method, form):
    layer = adapter.native(replace(spec_of(method, **OPTIONS.get(method, {})), form=form))
    (hidden, targets), extra = batch(24), extra_of(layer)
    hidden.requires_grad_()
    targets[5] = -100
    model = LossAndTopK(layer)
    # The traced operations run one after another: compiling them for this machine takes long.
    traced = torch.compile(model, fullgraph=True, backend="aot_eager")(hidden, targets, extra)
    expected = model(hidden, targets, extra)
    assert_alike(traced, expected)
    pairs = zip(gradients(traced[0], hidden, layer), gradients(expected[0], hidden, layer), strict=True)
    for gradient, expected_gradient in pairs:
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.many_cells
@pytest.mark.parametrize(("method", "form"), FORMS)
def test_an_exported_and_saved_layer_takes_any_batch_size(method, form):
    layer = adapter.native(replace(spec_of(method, **OPTIONS.get(method, {})), form=form))
    model, extra = LossAndTopK(layer), extra_of(layer)
    sizes = ({0: TOKENS}, {0: TOKENS}, dict.fromkeys(extra))
    file = io.BytesIO()
    torch.export.save(torch.export.export(model, (*batch(24), extra), dynamic_shapes=sizes), file)
    file.seek(0)
    program = torch.export.load(file).module()
    for tokens in (7, 40):
        hidden, targets = batch(tokens, seed=tokens)
        targets[3] = -100
        assert_alike(program(hidden, targets, extra), model(hidden, targets, extra))
    targets[3] = 2**40
    assert program(hidden, targets, extra)[0].isnan()
    assert layer.topk(hidden, 5)[1].shape == (40, 5)  # a trace leaves nothing behind in the layer


def test_compiled_samples_of_a_tree_are_those_of_eager_mode():
    layer, (hidden, _) = adapter.native(spec_of("huffman")), batch(24)
    uniforms = torch.rand(24, layer.spec.draws, generator=torch.Generator().manual_seed(2))
    drawn = torch.compile(layer.sample, fullgraph=True, backend="aot_eager")(hidden, uniforms)
    assert drawn.tolist() == layer.sample(hidden, uniforms).tolist()


@pytest.mark.parametrize("ids", [None, torch.randperm(50, generator=torch.Generator().manual_seed(1))])
def test_ties_in_a_trace_go_to_the_lower_id(ids):
    scores = torch.randint(4, (30, 50), generator=torch.Generator().manual_seed(0)).float()
    for k in (1, 7, 50):
        values, best = torch.compile(best_columns, fullgraph=True, backend="eager")(scores, ids, k)
        expected = best_columns(scores, ids, k)
        assert values.tolist() == expected[0].tolist()
        assert best.tolist() == expected[1].tolist()


@pytest.mark.skipif(not hasattr(torch.nn.functional, "linear_cross_entropy"), reason="PyTorch before 2.13")
def test_the_loss_of_pytorchs_own_function_is_compiled_as_full_softmax():
    layer = adapter.native(spec_of("linear_cross_entropy"))
    hidden, targets = batch(24)
    targets[5] = -100
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(hidden, targets), layer(hidden, targets))


@pytest.mark.parametrize("method", ["full_softmax", "huffman", "sohsm"])
def test_entropies_and_objectives_are_exported_without_a_bound_on_the_batch(method):
    class Objectives(torch.nn.Module):
        def __init__(self, layer: OutputLayer) -> None:
            super().__init__()
            self.layer: Any = layer

        def forward(self, hidden, targets):
            return self.layer.entropy(hidden), self.layer(hidden, targets, label_smoothing=0.1)

    model, tokens = Objectives(adapter.native(spec_of(method))), torch.export.Dim("tokens", min=2)
    exported = torch.export.export(model, batch(24), dynamic_shapes=({0: tokens}, {0: tokens})).module()
    torch.testing.assert_close(exported(*batch(7)), model(*batch(7)))
