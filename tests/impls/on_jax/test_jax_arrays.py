"""Operations on arrays that several layers in JAX share."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

jax = pytest.importorskip("jax")
import jax.numpy as jnp

from vocabench.harness import layers, registry
from vocabench.impls.on_jax import native
from vocabench.impls.on_jax.ops.arrays import column_sums, counts_up_to, plus_bias

numbers = st.integers(-5, 12)


@pytest.mark.lengthy
@settings(deadline=None)  # JAX compiles for each length
@given(st.lists(numbers, min_size=1, max_size=20), st.lists(numbers, min_size=1, max_size=20))
def test_counts_up_to_are_those_of_searchsorted(entries, values):
    sorted_N, values_M = np.sort(np.array(entries, np.int32)), np.array(values, np.int32)
    expected = np.searchsorted(sorted_N, values_M, side="right")
    np.testing.assert_array_equal(counts_up_to(jnp.asarray(sorted_N), jnp.asarray(values_M)), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_bias_is_added_and_has_the_gradient_of_an_addition(dtype):
    rng = np.random.default_rng(0)
    rows_NW = jnp.asarray(rng.normal(size=(7, 5)), jnp.float32)
    bias_W = jnp.asarray(rng.normal(size=5) * 1000, dtype)
    np.testing.assert_array_equal(plus_bias(rows_NW, bias_W), rows_NW + bias_W)
    np.testing.assert_allclose(column_sums(rows_NW), np.asarray(rows_NW).sum(axis=0), rtol=1e-5)
    weights_NW = jnp.asarray(rng.normal(size=(7, 5)), jnp.float32)
    expected, found = (
        jax.grad(lambda bias_W, add=add: (weights_NW * add(rows_NW, bias_W)).sum())(bias_W)
        for add in (jnp.add, plus_bias)
    )
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.astype(np.float32), expected.astype(np.float32), rtol=1e-2)


def _with_bias():
    names = registry.methods("jax")
    return [
        name for name in names if registry.definition(name).one_softmax and "bias" in registry.definition(name).options
    ]


@pytest.mark.parametrize("method", _with_bias())
def test_no_gradient_of_a_softmax_sums_the_columns_of_its_logits(method):
    """XLA takes ten times as long on a CPU as for the product with a vector of ones."""
    tokens, vocab, dim = 12, 300, 8
    options = {"words": [f"w{word}" for word in range(vocab)]} if method == "cnn_softmax" else {}
    spec = layers.spec(method, counts=np.arange(vocab, 0, -1), dim=dim, **options)
    hidden_ND, targets_N = jnp.ones((tokens, dim)), jnp.arange(tokens)
    drawn = {"key": jax.random.key(0)} if spec.definition.extra else {}
    for form in layers.forms("jax", spec, "cpu") or [None]:
        layer = native.native(replace(spec, form=form.id) if form else spec)
        params, structure = layer.init()
        step = jax.make_jaxpr(jax.grad(partial(layer.loss, **drawn)))(params, structure, hidden_ND, targets_N)
        assert not _sums_of_columns(step.jaxpr, tokens, dim), form


def _sums_of_columns(jaxpr, tokens, dim):
    """Return the sums over all tokens of what is larger than the hidden vectors."""
    return [
        equation
        for equation in _equations(jaxpr)
        if equation.primitive.name == "reduce_sum"
        and equation.params["axes"] == (0,)
        and equation.invars[0].aval.shape[0] == tokens
        and equation.invars[0].aval.size > tokens * dim
    ]


def _equations(jaxpr):
    """Return the equations of a jaxpr and of all those inside of it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)
