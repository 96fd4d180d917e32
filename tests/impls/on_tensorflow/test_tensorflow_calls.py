"""Calls of TensorFlow's layers as a Keras user makes them: axes, padding, compilation, precisions and random inputs."""

import dataclasses
import gc
from typing import Any

import numpy as np
import pytest

from vocabench.harness import layers, registry

pytestmark = pytest.mark.many_cells

if "tensorflow" not in registry.installed_frameworks():
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

import keras

from vocabench.impls.on_tensorflow import adapter
from vocabench.impls.on_tensorflow.adapter import tf

VOCAB, DIM = 60, 16
METHODS = registry.methods("tensorflow")
SAMPLED = [method for method in METHODS if registry.definition(method).extra]


def layer_of(method, form="", **arguments):
    spec = layers.spec(method, counts=np.arange(VOCAB, 0, -1), dim=DIM, **arguments)
    return adapter.native(dataclasses.replace(spec, form=form))


def batch(*shape):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(*shape, DIM)).astype(np.float32)
    return tf.constant(hidden), tf.constant(rng.integers(0, VOCAB, shape), tf.int32)


def extra_of(layer):
    drawn = layer.spec.draw_extra(np.random.default_rng(0))
    return {name: tf.constant(value) for name, value in drawn.items()}


@pytest.mark.parametrize("method", METHODS)
def test_three_dimensional_hidden_vectors_equal_the_flat_call(method):
    layer = layer_of(method)
    (hidden, targets), extra = batch(3, 4), extra_of(layer)
    flat, words = tf.reshape(hidden, [12, DIM]), tf.reshape(targets, [12])
    assert np.allclose(layer(hidden, targets, **extra), layer(flat, words, **extra), rtol=1e-6)
    losses = layer(hidden, targets, reduction="none", **extra)
    assert losses.shape == (3, 4)
    assert np.allclose(tf.reshape(losses, [12]), layer(flat, words, reduction="none", **extra), rtol=1e-5, atol=1e-6)
    uniforms = np.random.default_rng(1).random((3, 4, layer.spec.draws))
    for result, expected in (
        (layer.log_probs(hidden), layer.log_probs(flat)),
        (layer.target_log_probs(hidden, targets), layer.target_log_probs(flat, words)),
        (layer.topk(hidden, 5)[1], layer.topk(flat, 5)[1]),
        (layer.beam(hidden, 2, 30)[1], layer.beam(flat, 2, 30)[1]),
        (layer.sample(hidden, uniforms), layer.sample(flat, uniforms.reshape(12, -1))),
        (layer.entropy(hidden), layer.entropy(flat)),
    ):
        assert tuple(result.shape[:2]) == (3, 4)
        assert np.allclose(np.reshape(result, np.shape(expected)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
@pytest.mark.parametrize("method", METHODS)
def test_no_tokens_have_no_loss_and_zero_gradients(method, shape):
    layer = layer_of(method)
    hidden, targets = batch(*shape)
    for reduction in ("mean", "sum"):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss: Any = layer(hidden, targets, reduction=reduction, **extra_of(layer))
        assert float(loss) == 0
        gradients: Any = tape.gradient(loss, [hidden, *layer.trainable_variables])
        assert all(gradient is not None and not np.any(gradient) for gradient in gradients)
    assert layer(hidden, targets, reduction="none", **extra_of(layer)).shape == shape
    assert layer.log_probs(hidden).shape == (*shape, VOCAB)
    assert layer.topk(hidden, 3)[1].shape == layer.beam(hidden, 3, 9)[1].shape == (*shape, 3)
    assert layer.sample(hidden).shape == layer.entropy(hidden).shape == shape


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("method", METHODS)
def test_what_a_padded_position_holds_reaches_neither_loss_nor_gradients_in_any_form(method, value):
    spec = layer_of(method).spec
    for form in adapter.forms(spec) or [None]:
        _check_padding(layer_of(method, form.id if form else ""), value)


def _check_padding(layer, value):
    hidden, targets = batch(24)
    padding = np.arange(24) % 3 == 0
    targets = tf.where(padding, -100, targets)

    def losses_and_gradients(at_padding):
        filled = tf.where(padding[:, None], at_padding, hidden)
        with tf.GradientTape() as tape:
            tape.watch(filled)
            loss = layer(filled, targets, **extra_of(layer))
        gradients = tape.gradient(loss, [filled, *layer.trainable_variables])
        return [np.asarray(tf.convert_to_tensor(array)) for array in (loss, *gradients)]

    for got, expected in zip(losses_and_gradients(value), losses_and_gradients(0.0), strict=True):
        assert np.isfinite(expected).all()
        assert np.allclose(got, expected, rtol=1e-6, atol=1e-7)
    assert not losses_and_gradients(value)[1][padding].any()


# TensorFlow's own sampled loss has an operation that XLA does not compile.
@pytest.mark.parametrize("method", [method for method in METHODS if method != "sampled_softmax_loss"])
def test_a_call_compiled_by_xla_equals_the_eager_call(method):
    layer = layer_of(method)
    (hidden, targets), extra = batch(8), extra_of(layer)

    def loss_and_gradient(hidden, targets, extra):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = layer(hidden, targets, **extra)
        return loss, tape.gradient(loss, hidden)

    compiled: Any = tf.function(loss_and_gradient, jit_compile=True)(hidden, targets, extra)
    eager: Any = loss_and_gradient(hidden, targets, extra)
    for got, expected in zip(compiled, eager, strict=True):
        assert np.allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hidden_dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("method", METHODS)
def test_hidden_vectors_of_any_precision_are_taken(method, hidden_dtype):
    layer = layer_of(method)
    (hidden, targets), extra = batch(6), extra_of(layer)
    rounded = tf.cast(hidden, hidden_dtype)
    loss = layer(rounded, targets, **extra)
    assert loss.dtype == tf.float32
    assert np.allclose(loss, layer(tf.cast(rounded, tf.float32), targets, **extra), rtol=1e-6)


@pytest.mark.parametrize(
    ("compiled", "target_dtype"),
    [
        *((False, dtype) for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")),
        *((True, dtype) for dtype in ("uint8", "int64")),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_targets_of_any_integer_dtype_are_taken(method, compiled, target_dtype):
    layer = layer_of(method)
    (hidden, targets), extra = batch(6), extra_of(layer)
    call = tf.function(layer) if compiled else layer
    assert np.allclose(
        call(hidden, tf.cast(targets, target_dtype), **extra), layer(hidden, targets, **extra), rtol=1e-5
    )


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_mixed_policy_gives_losses_in_float32(policy):
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        for method in METHODS:
            layer = layer_of(method)
            hidden, targets = batch(6)
            half = keras.layers.Dense(DIM)(hidden)
            assert half.dtype != tf.float32
            loss = layer(half, targets, **extra_of(layer))
            assert loss.dtype == tf.float32, method
            assert np.isfinite(loss)
    finally:
        keras.mixed_precision.set_dtype_policy(before)


@pytest.mark.many_cells
@pytest.mark.parametrize("method", METHODS)
def test_fit_learns_with_padding_and_weights_of_tokens(method):
    layer = layer_of(method)
    hidden, targets, weight = keras.Input((4, DIM)), keras.Input((4,), dtype="int32"), keras.Input((4,))
    model = keras.Model([hidden, targets, weight], layer(hidden, targets, token_weight=weight))
    model.compile(keras.optimizers.Adam(0.01), loss=lambda _, loss: loss)
    vectors, words = (array.numpy() for array in batch(10, 4))
    words[:, 0] = -100
    vectors[:, 0] = np.nan
    weights = np.random.default_rng(0).random(words.shape).astype(np.float32)
    silent: Any = 0
    history = model.fit([vectors, words, weights], np.zeros(10), batch_size=5, epochs=12, verbose=silent)
    losses = history.history["loss"]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-3:]) < np.mean(losses[:3])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_uniforms_that_are_left_out_are_drawn(method, compiled):
    layer = layer_of(method)
    hidden = tf.zeros([400, DIM])

    def sample(generator):
        return layer.sample(hidden, generator=generator)

    call = tf.function(sample) if compiled else sample
    generator = tf.random.Generator.from_seed(0)
    first, second = call(generator).numpy(), call(generator).numpy()
    assert len(set(first)) > 10
    assert not np.array_equal(first, second)
    generator.reset_from_seed(0)
    assert np.array_equal(first, call(generator))
    assert len(set(layer.sample(hidden).numpy())) > 10


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("method", SAMPLED)
def test_sampled_words_that_are_left_out_are_drawn(method, compiled):
    layer = layer_of(method)
    hidden, targets = batch(8)

    def loss(generator):
        return layer(hidden, targets, generator=generator)

    call = tf.function(loss) if compiled else loss
    generator = tf.random.Generator.from_seed(0)
    first, second = float(call(generator)), float(call(generator))
    assert np.isfinite(first)
    assert first != second
    generator.reset_from_seed(0)
    assert first == float(call(generator))
    assert np.isfinite(layer(hidden, targets))


def test_autograph_raises_the_errors_of_calls_as_they_are():
    layer = layer_of("huffman")
    hidden, targets = tf.ones([4, DIM]), tf.range(4)

    @tf.function
    def refused(call):
        return call()

    for call, message in (
        (lambda: layer(hidden[:, 1:], targets), "hidden has shape"),
        (lambda: layer.training_loss(hidden, targets, reduction="x"), "unknown reduction"),
        (lambda: layer.topk(hidden, VOCAB + 1), "k="),
        (lambda: layer.sample(hidden, temperature=-1.0), "temperature=-1.0"),
        (lambda: layer(hidden, targets, smoothing=0.1), "the loss of huffman takes no 'smoothing'"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^{message}") as caught:
            refused(call)
        assert "\n" not in str(caught.value)


@pytest.mark.many_cells
@pytest.mark.parametrize("form", ["cpp", "words_2m", "tokens_16m"])
def test_a_traced_fused_loss_outlives_an_equal_layer(form):
    def traced():
        layer = layer_of("fused_softmax", form)

        @tf.function(autograph=False)
        def step(hidden, targets):
            with tf.GradientTape() as tape:
                loss = layer(hidden, targets)
            return loss, tape.gradient(loss, layer.trainable_variables), layer.topk(hidden, 3)

        return layer, step

    given = tf.ones([4, DIM]), tf.range(4)
    first, step = traced()
    expected = float(step(*given)[0])
    del first, step
    gc.collect()
    _layer, step = traced()
    assert float(step(*given)[0]) == pytest.approx(expected)
