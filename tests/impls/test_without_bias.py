"""The option `bias=False`: a layer whose biases are zeros that are no parameters."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import vocabench
from vocabench.harness import layer_file, layers, registry
from vocabench.impls.contract import Layer
from vocabench.impls.errors import BadInput, Unsupported
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import Arrays

pytestmark = pytest.mark.many_cells

V, D, N = 40, 6, 7
FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
METHODS = [method for method in registry.methods() if registry.definition(method).biases]
OWN = ("full_softmax", "fused_softmax", "d_softmax", "cnn_softmax", "class_hsm", "binary_tree", "nce")
COUNTS = np.random.default_rng(0).integers(1, 90, V)


def options_of(method: str) -> dict[str, Any]:
    return {"levels": 3} if method == "class_hsm" else {}


def create(framework: str, method: str, **options: Any) -> Layer:
    dtype: dict[str, Any] = {} if framework == "numpy" else {"dtype": "float64"}
    try:
        return vocabench.create(framework, method, counts=COUNTS, dim=D, **dtype, **options_of(method), **options)
    except Unsupported as reason:
        pytest.skip(str(reason))


def drawn(layer: Layer) -> Arrays:
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=value.shape) for name, value in layer.parameters().items()}


def batch(layer: Layer) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    rng = np.random.default_rng(2)
    return rng.normal(size=(N, D)), rng.integers(0, V, N), layer.spec.draw_extra(rng)


def test_methods_with_biases_have_the_option():
    for method in registry.methods():
        definition = registry.definition(method)
        spec = layers.spec(method, counts=COUNTS, dim=D, vocab=None)
        assert ("bias" in definition.options) == (bool(definition.biases) or method == "sohsm")
        assert {name for name in spec.parameter_shapes() if name in definition.biases} or not definition.biases


@pytest.mark.parametrize("method", METHODS)
def test_a_definition_without_bias_is_the_one_with_zeros(method):
    without, biased = create("numpy", method, bias=False), create("numpy", method)
    params = drawn(without)
    without.load(params)
    biased.load({name: params.get(name, np.zeros_like(value)) for name, value in biased.parameters().items()})
    left_out = biased.parameters().keys() - params.keys()
    assert left_out
    assert left_out <= {*registry.definition(method).biases}
    hidden, targets, extra = batch(without)
    loss, dhidden, grads = without.loss_and_grads(hidden, targets, **extra)
    loss_of_biased, dhidden_of_biased, grads_of_biased = biased.loss_and_grads(hidden, targets, **extra)
    assert loss == pytest.approx(loss_of_biased)
    np.testing.assert_allclose(dhidden, dhidden_of_biased)
    assert grads.keys() == params.keys()
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, grads_of_biased[name], err_msg=name)
    np.testing.assert_allclose(without.log_probs(hidden), biased.log_probs(hidden))
    work, work_of_biased = without.least_work(targets, **extra), biased.least_work(targets, **extra)
    assert work is not None
    assert work_of_biased is not None
    assert work.bytes < work_of_biased.bytes


@pytest.mark.parametrize("method", OWN)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_layer_without_bias_agrees_with_its_definition(framework, method, tmp_path):
    layer, oracle = create(framework, method, bias=False), create("numpy", method, bias=False)
    params = drawn(oracle)
    oracle.load(params)
    layer.load(params)
    hidden, targets, extra = batch(oracle)
    loss, dhidden, grads = layer.loss_and_grads(hidden, targets, **extra)
    expected, dexpected, expected_grads = oracle.loss_and_grads(hidden, targets, **extra)
    assert loss == pytest.approx(expected)
    np.testing.assert_allclose(dhidden, dexpected, atol=1e-12)
    assert grads.keys() == layer.parameters().keys() == params.keys()
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, expected_grads[name], atol=1e-12, err_msg=name)
    np.testing.assert_allclose(layer.log_probs(hidden), oracle.log_probs(hidden))
    np.testing.assert_array_equal(layer.topk(hidden, 5)[1], oracle.topk(hidden, 5)[1])
    if registry.definition(method).one_softmax and not registry.definition(method).train_only_loss:
        objective: dict[str, Any] = {"label_smoothing": 0.1, "z_loss": 0.01}
        assert layer.loss(hidden, targets, **objective) == pytest.approx(oracle.loss(hidden, targets, **objective))
    layer_file.save(tmp_path / "layer.npz", layer, hidden, targets)
    again = layer_file.load(tmp_path / "layer.npz").layer("numpy")
    np.testing.assert_allclose(again.log_probs(hidden), layer.log_probs(hidden))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_row_sparse_step_without_bias_is_the_dense_one(framework):
    dense, sparse = create(framework, "nce", bias=False), create(framework, "nce", bias=False)
    hidden, targets, extra = batch(dense)
    for layer, optimizer in ((dense, Optimizer()), (sparse, Optimizer(row_sparse=True))):
        layer.prepare("layer_step", hidden, targets, optimizer=optimizer, **extra)()
    for name, value in dense.parameters().items():
        np.testing.assert_allclose(sparse.parameters()[name], value, atol=1e-12)


def test_torch_layers_without_bias_can_be_kept_tied_and_resized():
    torch = pytest.importorskip("torch")
    import vocabench.torch

    for method in ("full_softmax", "class_hsm"):
        layer = vocabench.torch.layer(method, counts=COUNTS, dim=D, bias=False)
        biased = vocabench.torch.layer(method, counts=COUNTS, dim=D)
        assert not [name for name in layer.state_dict() if "bias" in name]
        with pytest.raises(RuntimeError, match=r"structure_digest|bias"):
            layer.load_state_dict(biased.state_dict())
        with pytest.raises(BadInput, match=r"unexpected \[.*bias"):
            layer.load_canonical(biased.to_canonical(dict(biased.named_parameters())))
        hidden = torch.randn(N, D)
        expected = layer.log_probs(hidden)
        for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            torch.testing.assert_close(again.log_probs(hidden), expected)
        assert layer.to(torch.bfloat16).log_probs(hidden).dtype is torch.float32
        layer.to(torch.float32)
        changes: list[tuple[dict[str, Any], bool]] = [({}, False), ({"bias": True}, True)]
        for options, has_bias in changes:
            resized = layer.resize([*COUNTS, 3], **options)
            assert any("bias" in name for name, _ in resized.named_parameters()) == has_bias
        assert not any("bias" in name for name, _ in biased.resize([*COUNTS, 3], bias=False).named_parameters())
        embedding = torch.nn.Embedding(V, D)
        layer.tie(embedding)
        layer(hidden, torch.arange(N)).backward()
        assert all(parameter.grad is not None for parameter in layer.parameters())


def test_keras_layers_without_bias_can_be_kept_tied_and_resized():
    tf = pytest.importorskip("tensorflow")
    import vocabench.tensorflow

    for method in ("full_softmax", "class_hsm"):
        layer = vocabench.tensorflow.layer(method, counts=COUNTS, dim=D, bias=False)
        biased = vocabench.tensorflow.layer(method, counts=COUNTS, dim=D)
        assert not [variable.name for variable in layer.variables if "bias" in variable.name]
        with pytest.raises(BadInput, match=r"unexpected \[.*bias"):
            layer.load_canonical(biased.to_canonical(biased.named_weights()))
        hidden = tf.random.normal([N, D])
        again = type(layer).from_config(layer.get_config())
        again.set_weights(layer.get_weights())
        np.testing.assert_allclose(again.log_probs(hidden), layer.log_probs(hidden))
        assert not any("bias" in name for name in layer.resize([*COUNTS, 3]).named_weights())
        assert any("bias" in name for name in layer.resize([*COUNTS, 3], bias=True).named_weights())
        embedding = tf.keras.layers.Embedding(V, D)
        embedding.build()
        layer.tie(embedding)
        with tf.GradientTape() as tape:
            loss = layer(hidden, tf.range(N))
        assert all(grad is not None for grad in tape.gradient(loss, layer.trainable_variables))


def test_jax_layers_without_bias_can_be_tied_and_resized():
    jax = pytest.importorskip("jax")
    import vocabench.jax

    for method in ("full_softmax", "class_hsm"):
        layer = vocabench.jax.layer(method, counts=COUNTS, dim=D, bias=False)
        assert layer != vocabench.jax.layer(method, counts=COUNTS, dim=D)
        params, structure = layer.init()
        assert not [name for name in params if "bias" in name]
        embedding = jax.random.normal(jax.random.key(0), (V, D))
        tied = layer.tie(params, structure, embedding)
        assert layer.sample(tied, structure, embedding[:N], key=jax.random.key(1), top_k=3).shape == (N,)
        resized_params = layer.resize(params, structure, [*COUNTS, 3])[1]
        assert not [name for name in resized_params if "bias" in name]
        assert any("bias" in name for name in layer.resize(params, structure, [*COUNTS, 3], bias=True)[1])
