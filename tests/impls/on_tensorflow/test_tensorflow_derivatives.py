"""Second derivatives of TensorFlow's layers: right, or refused in one line."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from vocabench.harness import layers, registry

pytestmark = pytest.mark.many_cells

if "tensorflow" not in registry.installed_frameworks():
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

import vocabench.tensorflow
from vocabench.impls.errors import BadInput
from vocabench.impls.on_tensorflow import adapter
from vocabench.impls.on_tensorflow.adapter import tf

VOCAB, DIM = 60, 8
METHODS = [method for method in registry.methods("tensorflow") if method != "fused_softmax"]
ONLY_FIRST = {"cpp", "words_2m", "words_8m", "tokens_16m"}  # forms with kernels or loops of their own


def takes_first_only(layer):
    return layer.form is not None and layer.form.id in ONLY_FIRST


def layers_of(method, dtype="float32"):
    """Return a layer in each of its forms, with weights unlike the initial ones."""
    options: dict[str, Any] = {"projection": "linear"} if method == "sohsm" else {}
    spec = layers.spec(method, counts=np.arange(VOCAB, 0, -1) ** 2, dim=DIM, dtype=dtype, **options)
    made = [adapter.native(dataclasses.replace(spec, form=form.id)) for form in adapter.forms(spec)]
    rng = np.random.default_rng(1)
    weights = {name: rng.normal(size=value.shape) / 4 for name, value in spec.initial_parameters().items()}
    for layer in made or [adapter.native(spec)]:
        layer.load_canonical({name: tf.constant(value) for name, value in weights.items()})
        yield layer


def hidden_of(dtype="float32"):
    return tf.constant(np.random.default_rng(3).normal(size=(7, DIM)), dtype)


def gradients_of(layer, hidden, reduction="mean"):
    extra = {name: tf.constant(ids) for name, ids in layer.spec.draw_extra(np.random.default_rng(0)).items()}
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        losses = layer(hidden, tf.range(7) ** 2, reduction=reduction, **extra)
    return [tf.convert_to_tensor(part) for part in tape.gradient(losses, [hidden, *layer.trainable_variables])]


def directions_of(gradients):
    rng = np.random.default_rng(7)
    return [tf.constant(rng.normal(size=part.shape), part.dtype) for part in gradients]


def products_of(layer, hidden, reduction="mean"):
    """Return the products of the matrix of second derivatives with random directions."""
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        gradients = gradients_of(layer, hidden, reduction)
        pairs = zip(gradients, directions_of(gradients), strict=True)
        along = tf.add_n([tf.reduce_sum(part * direction) for part, direction in pairs])
    sources = [hidden, *layer.trainable_variables]
    return tape.gradient(along, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def gradients_after(distance, layer, hidden):
    """Return the gradients at a distance in the random directions, and leave the weights as they were."""
    variables, directions = layer.trainable_variables, directions_of(gradients_of(layer, hidden))
    start = [variable.numpy() for variable in variables]
    for variable, value, direction in zip(variables, start, directions[1:], strict=True):
        variable.assign(value + distance * direction)
    gradients = gradients_of(layer, hidden + distance * directions[0])
    for variable, value in zip(variables, start, strict=True):
        variable.assign(value)
    return gradients


@pytest.mark.parametrize("method", METHODS)
def test_second_derivatives_are_those_of_finite_differences(method):
    for layer in layers_of(method, "float64"):
        if takes_first_only(layer):
            continue
        hidden, step = hidden_of("float64"), 1e-6
        ahead, behind = gradients_after(step, layer, hidden), gradients_after(-step, layer, hidden)
        for got, after, before in zip(products_of(layer, hidden), ahead, behind, strict=True):
            assert np.allclose(tf.convert_to_tensor(got), (after - before) / (2 * step), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("method", ["fused_softmax", "huffman", "class_hsm", "sohsm"])
def test_forms_with_first_derivatives_only_refuse_in_one_line(method, reduction, compiled):
    for layer in filter(takes_first_only, layers_of(method)):
        call = tf.function(products_of, autograph=False) if compiled else products_of
        with pytest.raises(BadInput, match=r"derivatives? of .*: allowed: first derivatives") as caught:
            call(layer, hidden_of(), reduction)
        assert "\n" not in str(caught.value)


def test_a_portable_function_has_second_derivatives():
    by_kernels = next(layers_of("huffman"))
    with vocabench.tensorflow.portable():
        got = tf.function(lambda hidden: products_of(by_kernels, hidden))(hidden_of())
    portable = next(layer for layer in layers_of("huffman") if not takes_first_only(layer))
    for one, other in zip(got, products_of(portable, hidden_of()), strict=True):
        assert np.allclose(tf.convert_to_tensor(one), tf.convert_to_tensor(other), rtol=1e-4, atol=1e-5)


@pytest.mark.many_cells
@pytest.mark.parametrize("method", ["huffman", "binary_tree", "class_hsm"])
def test_entropies_have_second_derivatives_in_xla(method):
    layer = next(layer for layer in layers_of(method, "float64") if not takes_first_only(layer))
    hidden = hidden_of("float64")

    def products(hidden):
        with tf.GradientTape() as outer:
            outer.watch(hidden)
            with tf.GradientTape() as inner:
                inner.watch(hidden)
                entropy = tf.reduce_sum(layer.entropy(hidden))
            along = tf.reduce_sum(inner.gradient(entropy, hidden) * hidden_of("float64"))
        return outer.gradient(along, hidden)

    compiled = tf.function(products, jit_compile=True, autograph=False)
    assert np.allclose(compiled(hidden), products(hidden))
