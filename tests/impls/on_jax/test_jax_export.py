"""JAX's layers in programs of other shapes: exported for any number of tokens, and split over the devices of a mesh."""

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

VOCAB, DIM = 50, 8
METHODS = registry.methods("jax")
ROWS, WHOLE = PartitionSpec("data"), PartitionSpec()


def layer_of(method: str) -> tuple[Any, dict[str, Any]]:
    """Return a layer, and the random inputs of its loss."""
    layer = native(layers.spec(method, counts=zipf_counts(VOCAB), dim=DIM))
    return layer, {"sampled_ids": jnp.arange(5)} if layer.spec.definition.extra else {}


def batch_of(tokens):
    rng = np.random.default_rng(tokens)
    hidden = rng.standard_normal((tokens, DIM)).astype(np.float32)
    return jnp.asarray(hidden), jnp.asarray(rng.integers(0, VOCAB, tokens), jnp.int32)


def assert_close(made, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5), made, expected)


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
