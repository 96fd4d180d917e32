"""The native layers as a user lifts them into a model: padding, reductions, mixed precision, outside truths."""

import dataclasses
import importlib.util
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.models.summarizer import PADDING

pytestmark = pytest.mark.many_cells

METHODS = registry.methods("torch")
needs = {
    name: pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")
    for name in ("torch", "tensorflow", "jax")
}


def options_of(method) -> list[dict[str, Any]]:
    """Return the specifications of a method with its default options and with its variants."""
    return [{}, *(dict(options) for options in registry.definition(method).variants)]


def extra_of(spec):
    return spec.draw_extra(np.random.default_rng(0))


def torch_form(method, dtype="float32"):
    import torch

    from vocabench.impls.on_torch import adapter

    spec = layers.spec(method, counts=zipf_counts(80), dim=16, dtype=dtype)
    native = adapter.native(spec)

    extra = {name: torch.tensor(ids) for name, ids in extra_of(spec).items()}

    def loss(hidden_ND, targets_N, **options):
        return native(torch.tensor(hidden_ND), torch.tensor(targets_N), **extra, **options).detach().numpy()

    def grad(hidden_ND, targets_N):
        hidden: Any = torch.tensor(hidden_ND, requires_grad=True)
        native(hidden, torch.tensor(targets_N), **extra).backward()
        return hidden.grad.numpy()

    return SimpleNamespace(spec=spec, native=native, extra=extra, loss=loss, grad=grad)


def tensorflow_form(method):
    from vocabench.impls.on_tensorflow import adapter
    from vocabench.impls.on_tensorflow.adapter import tf

    spec = layers.spec(method, counts=zipf_counts(80), dim=16)
    native = adapter.native(spec)

    extra = {name: tf.constant(ids, tf.int32) for name, ids in extra_of(spec).items()}

    def loss(hidden_ND, targets_N, **options):
        return native(tf.constant(hidden_ND), tf.constant(targets_N, tf.int32), **extra, **options).numpy()

    def grad(hidden_ND, targets_N):
        hidden = tf.constant(hidden_ND)
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            value = native(hidden, tf.constant(targets_N, tf.int32), **extra)
        return tape.gradient(value, hidden).numpy()

    return SimpleNamespace(spec=spec, native=native, loss=loss, grad=grad)


def jax_form(method):
    import jax
    import jax.numpy as jnp

    from vocabench.impls.on_jax import adapter

    spec = layers.spec(method, counts=zipf_counts(80), dim=16)
    native = adapter.native(spec)
    structure = native.structure()
    tree = {name: jnp.asarray(value, jnp.float32) for name, value in spec.initial_parameters().items()}
    params = native.from_canonical(structure, tree)

    extra = {name: jnp.asarray(ids) for name, ids in extra_of(spec).items()}

    # Compiled whole, which takes less than each operation by itself.
    compiled = jax.jit(native.loss, static_argnames=("reduction",))
    gradient = jax.jit(jax.grad(native.loss, argnums=2))

    def loss(hidden_ND, targets_N, **options):
        inputs = jnp.asarray(hidden_ND), jnp.asarray(targets_N)
        return np.asarray(compiled(params, structure, *inputs, **extra, **options))

    def grad(hidden_ND, targets_N):
        return np.asarray(gradient(params, structure, jnp.asarray(hidden_ND), jnp.asarray(targets_N), **extra))

    return SimpleNamespace(spec=spec, native=native, loss=loss, grad=grad)


FORMS = {"torch": torch_form, "tensorflow": tensorflow_form, "jax": jax_form}
CASES = [
    pytest.param(form, method, marks=needs[framework], id=f"{framework}-{method}")
    for framework, form in FORMS.items()
    for method in registry.methods(framework)
]


@pytest.mark.parametrize(("form", "method"), CASES)
def test_padding_has_no_loss_no_gradient_and_no_share_in_the_mean(form, method):
    made = form(method)
    inputs = batch(made.spec.counts, tokens=12, dim=16, seed=0)
    hidden_ND = inputs.hidden_ND.astype(np.float32)
    padded_N = inputs.targets_N.copy()
    padded_N[[0, 5, 11]] = -100
    real_N = padded_N != -100
    each_N = made.loss(hidden_ND, padded_N, reduction="none")
    assert each_N.shape == (12,)
    assert (each_N[~real_N] == 0).all()
    assert (each_N[real_N] > 0).all()
    without = made.loss(hidden_ND[real_N], padded_N[real_N])
    assert made.loss(hidden_ND, padded_N) == pytest.approx(without, rel=1e-5)
    assert made.loss(hidden_ND, padded_N, reduction="sum") == pytest.approx(9 * without, rel=1e-5)
    dhidden_ND = made.grad(hidden_ND, padded_N)
    assert (dhidden_ND[~real_N] == 0).all()
    assert np.abs(dhidden_ND[real_N]).min(axis=1).min() >= 0
    assert np.abs(dhidden_ND[real_N]).max() > 0
    assert made.loss(hidden_ND, np.full(12, -100)) == 0
    assert (made.grad(hidden_ND, np.full(12, -100)) == 0).all()
    other = np.where(padded_N == -100, 7, padded_N)
    assert made.loss(hidden_ND, other, ignore_index=7) != pytest.approx(made.loss(hidden_ND, other), rel=1e-6)


@pytest.mark.parametrize("form", [pytest.param(form, marks=needs[name], id=name) for name, form in FORMS.items()])
def test_weights_in_half_precision_are_summed_in_the_precision_of_losses(form):
    """The sum of these weights is above the largest number of float16."""
    made = form("full_softmax")
    inputs = batch(made.spec.counts, tokens=12, dim=16, seed=0)
    hidden_ND = inputs.hidden_ND.astype(np.float32)
    padded_N = np.where(np.arange(12) == 5, -100, inputs.targets_N)
    weight_N = np.full(12, 60_000, np.float16)
    if form is torch_form:
        import torch

        weight_N = torch.tensor(weight_N)
    weighted = made.loss(hidden_ND, padded_N, token_weight=weight_N)
    assert weighted == pytest.approx(made.loss(hidden_ND, padded_N), rel=1e-5)


@needs["tensorflow"]
@pytest.mark.parametrize("method", ["fused_softmax", "inplace_softmax", "sohsm", "adaptive_softmax"])
def test_tensorflow_traces_once_for_batches_of_every_size(method):
    """Cover the layers whose layout depends on the number of tokens."""
    from vocabench.impls.on_tensorflow.adapter import tf

    made = tensorflow_form(method)

    @tf.function(input_signature=[tf.TensorSpec([None, 16]), tf.TensorSpec([None], tf.int32)])
    def loss_and_grad(hidden_ND, targets_N):
        with tf.GradientTape() as tape:
            tape.watch(hidden_ND)
            loss = made.native(hidden_ND, targets_N)
        return loss, tape.gradient(loss, hidden_ND)

    for tokens in (1, 200):
        inputs = batch(made.spec.counts, tokens=tokens, dim=16, seed=0)
        hidden_ND = inputs.hidden_ND.astype(np.float32)
        loss, dhidden_ND = loss_and_grad(hidden_ND, inputs.targets_N.astype(np.int32))
        assert float(loss) == pytest.approx(float(made.loss(hidden_ND, inputs.targets_N)), rel=1e-5)
        np.testing.assert_allclose(dhidden_ND, made.grad(hidden_ND, inputs.targets_N), atol=1e-5)
    assert loss_and_grad.experimental_get_tracing_count() == 1


@needs["torch"]
@pytest.mark.parametrize("method", METHODS)
def test_torch_autocast_sums_in_float32(method):
    import torch

    made = torch_form(method)
    inputs = batch(made.spec.counts, tokens=40, dim=16, seed=1)
    hidden: Any = torch.tensor(inputs.hidden_ND, dtype=torch.float32, requires_grad=True)
    exact = made.native(hidden, torch.tensor(inputs.targets_N), **made.extra)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = made.native(hidden.bfloat16(), torch.tensor(inputs.targets_N), **made.extra)
    assert mixed.dtype == torch.float32
    mixed.backward()
    assert float(mixed.detach()) == pytest.approx(float(exact.detach()), rel=0.01)
    assert torch.isfinite(hidden.grad).all()


@needs["torch"]
@pytest.mark.parametrize("options", [{}, {"projection": "none", "bias": True}], ids=["paper", "biases"])
@pytest.mark.parametrize("form", ["", "loop"])
def test_a_state_dict_of_torch_brings_its_clusters_along(form, options):
    """Into a layer that begins with others, as a checkpoint of a trained model does."""
    import torch

    from vocabench.impls.on_torch import adapter

    spec = dataclasses.replace(layers.spec("sohsm", counts=zipf_counts(400), dim=16, **options), form=form)
    trained: Any = adapter.native(spec)
    fresh: Any = adapter.native(spec)
    rng = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(300, 16, generator=generator)
    trained.observe(trained.cluster_log_probs(hidden_ND).detach(), torch.from_numpy(rng.integers(0, 400, 300)))
    before_V, after_V = trained.reorganize()
    assert (before_V != after_V).any()
    fresh.load_state_dict(trained.state_dict())
    uniforms_NU = torch.rand(300, spec.draws, generator=generator)
    for rows in (1, 300):
        some = hidden_ND[:rows]
        for work in (
            lambda layer, some=some: layer.search(some, 10),
            lambda layer, some=some: layer.beam(some, 3, 3),
            lambda layer, some=some, rows=rows: (layer.sample(some, uniforms_NU[:rows]),),
            lambda layer, some=some: (layer.log_probs(some),),
        ):
            assert all(map(torch.equal, work(trained), work(fresh)))


@needs["torch"]
@pytest.mark.parametrize("form", ["grouped_mm", "loop"])
def test_a_layer_of_torch_is_trained_after_it_has_decoded_under_inference_mode(form):
    import torch

    from vocabench.impls.on_torch import adapter

    spec = dataclasses.replace(layers.spec("sohsm", counts=zipf_counts(400), dim=16, bias=True), form=form)
    native = adapter.native(spec)
    hidden_ND = torch.randn(9, 16, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for scale in (0.01, 30.0):
            native.search(scale * hidden_ND, 10)
            native.log_probs(hidden_ND)
    loss = native(hidden_ND, torch.arange(9)) - native.log_probs(hidden_ND)[:, 3].mean()
    for gradient in torch.autograd.grad(loss, list(native.parameters())):
        assert torch.isfinite(gradient).all()


@needs["tensorflow"]
def test_weights_of_keras_bring_clusters_along():
    import tensorflow as tf

    from vocabench.impls.on_tensorflow import adapter

    trained, fresh = (
        adapter.native(layers.spec("sohsm", counts=zipf_counts(400), dim=16, seed=seed)) for seed in (1, 0)
    )
    hidden_ND = tf.constant(np.random.default_rng(0).normal(size=(30, 16)), tf.float32)
    assert (trained.cluster.numpy() != fresh.cluster.numpy()).any()
    fresh.set_weights(trained.get_weights())
    for work in (lambda layer: layer.topk(hidden_ND, 10), lambda layer: (layer.log_probs(hidden_ND),)):
        for ours, theirs in zip(work(trained), work(fresh), strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@needs["torch"]
@pytest.mark.parametrize("method", METHODS)
def test_torch_log_probs_have_the_gradient_of_the_nll(method):
    """By every parameter: label smoothing is trained through them."""
    import torch

    from vocabench.impls.on_torch import adapter

    targets_N = torch.arange(0, 40, 3)
    hidden_ND = torch.randn(len(targets_N), 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for options in options_of(method):
        native = adapter.native(layers.spec(method, counts=zipf_counts(40), dim=16, dtype="float64", **options))
        inputs: Any = [hidden_ND.clone().requires_grad_(), *native.parameters()]
        log_probs_N = native.log_probs(inputs[0])[torch.arange(len(targets_N)), targets_N]
        direct = torch.autograd.grad(
            -native.target_log_probs(inputs[0], targets_N).sum(), inputs, materialize_grads=True
        )
        dense = torch.autograd.grad(-log_probs_N.sum(), inputs, materialize_grads=True)
        for of_nll, of_log_probs in zip(direct, dense, strict=True):
            np.testing.assert_allclose(of_log_probs, of_nll, atol=1e-12, err_msg=str(options))


@pytest.mark.lengthy
@needs["tensorflow"]
@pytest.mark.parametrize("method", registry.methods("tensorflow"))
def test_tensorflow_log_probs_have_the_gradient_of_the_nll(method):
    """By every parameter, in one trace for any number of tokens: label smoothing is trained through them."""
    from vocabench.impls.on_tensorflow import adapter
    from vocabench.impls.on_tensorflow.adapter import tf

    targets_N = np.arange(0, 40, 3)
    hidden_ND = np.random.default_rng(0).normal(size=(len(targets_N), 16))
    for options in options_of(method):
        native = adapter.native(layers.spec(method, counts=zipf_counts(40), dim=16, dtype="float64", **options))

        def grads(hidden_ND, targets_N, native=native):
            inputs = [hidden_ND, *native.named_weights().values()]
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(hidden_ND)
                direct = tf.reduce_sum(native._nll(hidden_ND, targets_N))
                dense = -tf.reduce_sum(tf.gather(native.log_probs(hidden_ND), targets_N, batch_dims=1))
            zero = tf.UnconnectedGradients.ZERO
            return [
                [tf.convert_to_tensor(grad) for grad in tape.gradient(sum_, inputs, unconnected_gradients=zero)]
                for sum_ in (direct, dense)
            ]

        traced = tf.function(
            grads, input_signature=[tf.TensorSpec([None, 16], tf.float64), tf.TensorSpec([None], tf.int32)]
        )
        for of_nll, of_log_probs in zip(*traced(hidden_ND, targets_N.astype(np.int32)), strict=True):
            np.testing.assert_allclose(of_log_probs, of_nll, atol=1e-12, err_msg=str(options))


@needs["torch"]
def test_full_softmax_is_torchs_cross_entropy():
    import torch

    layer = layers.create("numpy", "full_softmax", counts=zipf_counts(90), dim=12)
    inputs = batch(layer.spec.counts, tokens=30, dim=12, seed=2)
    params: Any = {name: torch.tensor(value, requires_grad=True) for name, value in layer.parameters().items()}
    hidden: Any = torch.tensor(inputs.hidden_ND, requires_grad=True)
    logits = hidden @ params["weight"].T + params["bias"]
    truth = torch.nn.functional.cross_entropy(logits, torch.tensor(inputs.targets_N))
    truth.backward()
    loss, dhidden_ND, grads = layer.loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    assert loss == pytest.approx(float(truth.detach()), rel=1e-12)
    np.testing.assert_allclose(dhidden_ND, hidden.grad.numpy(), atol=1e-14)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, params[name].grad.numpy(), atol=1e-14)


@needs["torch"]
def test_the_oracles_language_model_is_torchs_lstm_and_adagrad():
    """From outside: nn.LSTM, clip_grad_norm_ and torch.optim.Adagrad on the same batch."""
    import torch
    from torch import nn

    from vocabench.impls.models.language_model import LanguageModelConfig

    config = LanguageModelConfig(embedding=5, hidden=6)
    spec = layers.spec("full_softmax", counts=zipf_counts(31), dim=6, dtype="float64")
    oracle = layers.create_network("numpy", spec, config)
    start = {name: torch.tensor(value) for name, value in oracle.parameters().items()}
    embedding = nn.Embedding.from_pretrained(start["embedding"], freeze=False)
    lstm: Any = nn.LSTM(5, 6, batch_first=True, dtype=torch.float64)
    output = nn.Linear(6, 31, dtype=torch.float64)
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(start["lstm_input_weight"])
        lstm.weight_hh_l0.copy_(start["lstm_hidden_weight"])
        lstm.bias_ih_l0.copy_(start["lstm_bias"])
        lstm.bias_hh_l0.zero_()
        output.weight.copy_(start["output.weight"])
        output.bias.copy_(start["output.bias"])
    lstm.bias_hh_l0.requires_grad_(False)
    trained = [p for m in (embedding, lstm, output) for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.Adagrad(trained, lr=0.1, eps=1e-10, weight_decay=1e-6)
    text_BT = np.random.default_rng(0).integers(0, 31, (4, 9))
    for _ in range(5):
        outputs, _state = lstm(embedding(torch.tensor(text_BT[:, :-1])))
        loss = nn.functional.cross_entropy(output(outputs).flatten(0, 1), torch.tensor(text_BT[:, 1:]).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 0.25)
        optimizer.step()
        ours = float(oracle.step(text_BT[:, :-1], text_BT[:, 1:], carry=False))
        assert ours == pytest.approx(float(loss.detach()), rel=1e-10)


@needs["jax"]
def test_cudnns_weights_are_packed_as_its_reference_reads_them():
    """The reference implementation of the call that a GPU makes, on this machine's processor."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import rnn

    from vocabench.impls.on_jax.models import _lstm

    keys = jax.random.split(jax.random.key(0), 6)
    shapes = {"embedding": (20, 5), "lstm_input_weight": (24, 5), "lstm_hidden_weight": (24, 6), "lstm_bias": (24,)}
    body = {name: jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=False)}
    inputs_BT = jax.random.randint(keys[4], (3, 7), 0, 20)
    state = (jax.random.normal(keys[5], (3, 6)), jnp.ones((3, 6)))
    lengths_B = jnp.array([7, 1, 4], jnp.int32)
    ours, (h, c) = _lstm.lstm(body, "lstm", body["embedding"], inputs_BT, state, lengths_B)
    weights = rnn.unpack_lstm_weights(_lstm.cudnn_weights(body, "lstm"), 5, 6, 1, False)
    truth, h_n, c_n = rnn.lstm_ref(
        body["embedding"][inputs_BT], state[0][None], state[1][None], *weights, lengths_B, 5, 6, 1, 0.0, False
    )
    real_BT1 = (jnp.arange(7) < lengths_B[:, None])[:, :, None]
    np.testing.assert_allclose(jnp.where(real_BT1, ours, 0), truth, atol=1e-5)
    np.testing.assert_allclose(h, h_n[0], atol=1e-5)
    np.testing.assert_allclose(c, c_n[0], atol=1e-5)


@needs["jax"]
@pytest.mark.parametrize("shape", [(1, 3), (3, 7), (8, 12)])
def test_a_shape_of_pairs_is_compiled_for_at_most_eight_numbers_of_targets(shape):
    from vocabench.impls.on_jax.models import _packing

    rng = np.random.default_rng(0)
    size = shape[0] * shape[1]
    numbers = set()
    for real in range(1, size + 1):
        targets_BT = np.full(shape, PADDING)
        places = np.sort(rng.choice(size, real, replace=False))
        targets_BT.flat[places] = rng.integers(0, 20, real)
        places_N, targets_N = _packing.pack(targets_BT, PADDING)
        assert places_N[:real].tolist() == places.tolist()
        assert targets_N[:real].tolist() == targets_BT.flat[places].tolist()
        assert (targets_N[real:] == PADDING).all()
        assert len(places_N) == len(targets_N) < real + size / 8 + 1
        numbers.add(len(places_N))
    assert len(numbers) <= 8


@pytest.mark.parametrize("framework", [pytest.param(name, marks=mark) for name, mark in needs.items()])
def test_a_layer_and_its_specification_show_sizes_and_what_is_not_a_default(framework):
    spec = layers.spec("sohsm", counts=zipf_counts(80), dim=16, dtype="float64", projection="none", interval=0)
    shown = "vocab=80, dim=16, dtype='float64', projection='none', interval=0"
    assert repr(spec) == f"LayerSpec('sohsm', {shown}, seed=0)"
    assert repr(registry.adapter(framework).native(spec)) == f"SelfOrganizedHierarchicalSoftmax({shown})"
