"""JAX's layers in programs of other shapes: exported for any number of tokens, and split over the devices of a mesh."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import export
from jax.sharding import PartitionSpec

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.on_jax.native import native

pytestmark = pytest.mark.many_cells

VOCAB, DIM = 50, 8
METHODS = registry.methods("jax")
ROWS, WHOLE = PartitionSpec("data"), PartitionSpec()


def layer_of(method: str, form: str = "", **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return a layer, and the random inputs of its loss."""
    layer = native(replace(layers.spec(method, counts=zipf_counts(VOCAB), dim=DIM, **options), form=form))
    return layer, {"sampled_ids": jnp.arange(5)} if layer.spec.definition.extra else {}


def batch_of(tokens):
    rng = np.random.default_rng(tokens)
    hidden = rng.standard_normal((tokens, DIM)).astype(np.float32)
    return jnp.asarray(hidden), jnp.asarray(rng.integers(0, VOCAB, tokens), jnp.int32)


def assert_close(made, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5), made, expected)


@pytest.mark.many_cells
@pytest.mark.parametrize("method", METHODS)
def test_a_loss_and_the_best_words_are_exported_for_any_number_of_tokens(method):
    layer, extra = layer_of(method)
    trees = layer.init()

    def computed(params, structure, hidden, targets):
        loss, grads = jax.value_and_grad(layer.loss)(params, structure, hidden, targets, **extra)
        return loss, grads, layer.topk(params, structure, hidden, 3)

    (tokens,) = export.symbolic_shape("tokens")
    batch = jax.ShapeDtypeStruct((tokens, DIM), jnp.float32), jax.ShapeDtypeStruct((tokens,), jnp.int32)
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), trees)
    exported = export.deserialize(export.export(jax.jit(computed))(*shapes, *batch).serialize())
    assert_close(exported.call(*trees, *batch_of(6)), jax.jit(computed)(*trees, *batch_of(6)))


@pytest.mark.many_cells
@pytest.mark.parametrize("method", METHODS)
def test_a_loss_is_differentiated_inside_of_shard_map(method):
    layer, extra = layer_of(method)
    trees, batch = layer.init(), batch_of(6)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def own(params, structure, hidden, targets):
        return jax.lax.psum(layer.loss(params, structure, hidden, targets, reduction="sum", **extra), "data")

    split = jax.shard_map(own, mesh=mesh, in_specs=(WHOLE, WHOLE, ROWS, ROWS), out_specs=WHOLE)
    expected = jax.jit(jax.value_and_grad(layer.loss), static_argnames="reduction")
    assert_close(jax.jit(jax.value_and_grad(split))(*trees, *batch), expected(*trees, *batch, reduction="sum", **extra))


def decoded(layer, params, structure, hidden, uniforms):
    tree = params, structure, hidden
    return (
        layer.topk(*tree, 3),
        layer.beam(*tree, 3, 5),
        layer.sample(*tree, uniforms),
        layer.sample(*tree, uniforms, top_k=4, top_p=0.9),
        layer.entropy(*tree),
        layer.log_probs(*tree),
        layer.target_log_probs(*tree, jnp.zeros(hidden.shape[0], jnp.int32)),
    )


def uniforms_of(layer, tokens):
    return jnp.asarray(np.random.default_rng(0).random((tokens, layer.spec.draws)), jnp.float32)


PORTABLE = [("sohsm", "tiles_8"), ("class_hsm", "tiles_8"), ("huffman", "pairs_256")]


@pytest.mark.many_cells
@pytest.mark.parametrize("tokens", [6, 1])
@pytest.mark.parametrize(("method", "form"), [*((method, "") for method in METHODS), *PORTABLE])
def test_words_are_decoded_inside_of_shard_map(method, form, tokens):
    layer, _ = layer_of(method, form)
    given = *layer.init(), batch_of(tokens)[0], uniforms_of(layer, tokens)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.shard_map(
        lambda *own: decoded(layer, *own), mesh=mesh, in_specs=(WHOLE, WHOLE, ROWS, ROWS), out_specs=ROWS
    )
    assert_close(jax.jit(split)(*given), jax.jit(lambda *own: decoded(layer, *own))(*given))


@pytest.mark.many_cells
@pytest.mark.parametrize("method", METHODS)
def test_words_are_decoded_for_any_number_of_tokens(method):
    layer, _ = layer_of(method)
    trees = layer.init()

    def computed(params, structure, hidden, uniforms):
        tree = params, structure, hidden
        return layer.beam(*tree, 3, 5), layer.sample(*tree, uniforms), layer.sample(*tree, uniforms, top_k=4)

    (tokens,) = export.symbolic_shape("tokens")
    batch = [jax.ShapeDtypeStruct((tokens, width), jnp.float32) for width in (DIM, layer.spec.draws)]
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), trees)
    exported = export.deserialize(export.export(jax.jit(computed))(*shapes, *batch).serialize())
    given = *trees, batch_of(6)[0], uniforms_of(layer, 6)
    assert_close(exported.call(*given), jax.jit(computed)(*given))


@pytest.mark.parametrize("method", ["full_softmax", "fused_softmax", "class_hsm"])
def test_a_layer_without_bias_is_differentiated_inside_of_shard_map(method):
    layer, _ = layer_of(method, bias=False)
    trees, batch = layer.init(), batch_of(6)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def own(params, structure, hidden, targets):
        return jax.lax.psum(layer.loss(params, structure, hidden, targets, reduction="sum"), "data")

    split = jax.shard_map(own, mesh=mesh, in_specs=(WHOLE, WHOLE, ROWS, ROWS), out_specs=WHOLE)
    expected = jax.jit(jax.value_and_grad(layer.loss), static_argnames="reduction")
    assert_close(jax.jit(jax.value_and_grad(split))(*trees, *batch), expected(*trees, *batch, reduction="sum"))
