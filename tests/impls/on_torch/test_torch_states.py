"""Copies, pickles and states of the native PyTorch layers."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from tests.impls.on_torch.native_layers import (
    COUNTS,
    batch,
    extra_of,
    in_all_forms,
    layer_of,
    of_all_methods,
    spec_of,
)
from vocabench.impls.on_torch import adapter
from vocabench.impls.on_torch.layer import OutputLayer

pytestmark = pytest.mark.many_cells

OTHER_COUNTS = np.roll(COUNTS, 7)


def assert_alike(copied: Any, layer: OutputLayer) -> None:
    hidden, targets = batch(24)
    extra = extra_of(layer)
    assert torch.equal(copied(hidden, targets, **extra), layer(hidden, targets, **extra))
    torch.testing.assert_close(copied.log_probs(hidden), layer.log_probs(hidden))
    torch.testing.assert_close(copied.target_log_probs(hidden, targets), layer.target_log_probs(hidden, targets))
    assert copied.topk(hidden, 5)[1].tolist() == layer.topk(hidden, 5)[1].tolist()
    assert copied.beam(hidden, 5, 9)[1].tolist() == layer.beam(hidden, 5, 9)[1].tolist()
    uniforms = torch.rand(24, layer.spec.draws)
    assert copied.sample(hidden, uniforms).tolist() == layer.sample(hidden, uniforms).tolist()


def randomized(layer: OutputLayer, seed: int = 0) -> OutputLayer:
    """Return the layer with other parameters than its initial ones."""
    rng = np.random.default_rng(seed)
    shapes = layer.spec.parameter_shapes().items()
    layer.load_canonical({name: torch.from_numpy(rng.normal(size=shape)) for name, shape in shapes})
    return layer


@of_all_methods
def test_copies_and_pickles_compute_the_same(method):
    for layer in in_all_forms(method):
        randomized(layer)
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        for copied in (
            copy.deepcopy(layer),
            pickle.loads(pickle.dumps(layer)),
            torch.load(file, weights_only=False),
            AveragedModel(layer).module,
        ):
            assert_alike(copied, layer)
        with torch.no_grad():
            next(layer.parameters()).add_(1.0)
        assert not torch.equal(next(layer.parameters()), next(copied.parameters()))


@of_all_methods
def test_a_saved_state_is_loaded_as_weights_only(method):
    for layer in in_all_forms(method):
        randomized(layer)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        fresh = layer_of(method)
        assert fresh.load_state_dict(torch.load(file, weights_only=True)).missing_keys == []
        assert_alike_in_any_form(fresh, layer)


def assert_alike_in_any_form(loaded: OutputLayer, layer: OutputLayer) -> None:
    hidden, targets = batch(24)
    torch.testing.assert_close(loaded.log_probs(hidden), layer.log_probs(hidden))
    torch.testing.assert_close(loaded.target_log_probs(hidden, targets), layer.target_log_probs(hidden, targets))


@of_all_methods
def test_a_state_holds_the_whole_structure_and_does_not_depend_on_the_form(method):
    states = [layer.state_dict() for layer in in_all_forms(method)]
    structure = spec_of(method).structure
    for state in states:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(state[name], states[0][name]) for name in state)
        assert bytes(state["structure_digest"].tolist()) == spec_of(method).structure_digest
        for name, array in structure.items():
            np.testing.assert_allclose(state[f"structure_{name}"].numpy(), array, rtol=1e-6)


@pytest.mark.parametrize("method", ["huffman", "binary_tree", "adaptive_softmax", "class_hsm", "d_softmax"])
@pytest.mark.parametrize("strict", [True, False])
def test_a_state_of_another_structure_is_refused(method, strict):
    source, layer = layer_of(method), layer_of(method, counts=OTHER_COUNTS)
    hidden, targets = batch(24)
    before = layer(hidden, targets)
    with pytest.raises(RuntimeError, match=f"state of {method} has structure_digest=.*: allowed: .*same counts"):
        layer.load_state_dict(source.state_dict(), strict=strict)
    if method != "class_hsm":
        assert torch.equal(layer(hidden, targets), before)


def test_a_state_without_a_digest_is_refused():
    layer = layer_of("full_softmax")
    state = {name: value for name, value in layer.state_dict().items() if name != "structure_digest"}
    with pytest.raises(RuntimeError, match="state of full_softmax has no structure_digest"):
        layer.load_state_dict(state)


def test_a_state_inside_a_model_is_refused_too():
    models = [torch.nn.Sequential(layer_of("huffman", counts=counts)) for counts in (COUNTS, OTHER_COUNTS)]
    models[0].load_state_dict(copy.deepcopy(models[0].state_dict()))
    with pytest.raises(RuntimeError, match="state of huffman has structure_digest="):
        models[1].load_state_dict(models[0].state_dict())


@pytest.mark.parametrize("options", [{}, {"projection": "none", "bias": True}], ids=["paper", "biases"])
def test_sohsm_takes_over_clusters_and_statistics_in_all_forms(options):
    hidden, targets = batch(300)
    for source in in_all_forms("sohsm", **options):
        trained: Any = randomized(source)
        trained.training_loss(hidden, targets).backward()
        before_V, after_V = trained.reorganize()
        assert (before_V != after_V).any()
        trained.training_loss(hidden, targets)
        for loaded in in_all_forms("sohsm", counts=OTHER_COUNTS, **options):
            loaded.load_state_dict(trained.state_dict())
            assert_alike_in_any_form(loaded, trained)
        resumed: Any = adapter.native(trained.spec)
        resumed.load_state_dict(trained.state_dict())
        for layer in (trained, resumed):
            layer.training_loss(hidden, targets)
        clusters = [layer.reorganize()[1].tolist() for layer in (trained, resumed)]
        assert clusters[0] == clusters[1]
        assert_alike_in_any_form(resumed, trained)


def test_padding_changes_no_statistics_of_sohsm():
    hidden, targets = batch(50)
    padded_hidden, padded = (
        torch.cat([hidden, torch.full((9, 16), torch.nan)]),
        torch.cat([targets, torch.full((9,), 7)]),
    )
    targets[targets == 7] = 8
    padded[:50] = targets
    layers: list[Any] = [layer_of("sohsm"), layer_of("sohsm")]
    losses = [layers[0].training_loss(hidden, targets), layers[1].training_loss(padded_hidden, padded, ignore_index=7)]
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(layers[0].statistics, layers[1].statistics)
    assert torch.equal(layers[0](hidden, targets), layers[1](hidden, targets))


@of_all_methods
def test_a_layer_on_the_meta_device_is_filled_by_a_state(method):
    source = randomized(layer_of(method))
    layer = layer_of(method).to("meta").to_empty(device="cpu")
    layer.load_state_dict(source.state_dict())
    assert_alike(layer, source)


@of_all_methods
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_casts_change_no_constant(method, dtype):
    layer = layer_of(method)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    layer.to(dtype)
    for name, buffer in layer.named_buffers():
        assert buffer.dtype == before[name].dtype
        assert torch.equal(buffer, before[name])


@pytest.mark.parametrize("method", ["class_hsm", "huffman"])
def test_a_refused_state_leaves_a_layer_and_its_modules_as_they_are(method):
    options = {"levels": 3} if method == "class_hsm" else {}
    layer = randomized(adapter.native(spec_of(method, **options)))
    other = adapter.native(spec_of(method, counts=OTHER_COUNTS, **options))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    model = torch.nn.ModuleList([layer])
    with pytest.raises(RuntimeError, match="structure_digest") as caught:
        model.load_state_dict(torch.nn.ModuleList([other]).state_dict())
    assert "Missing" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
