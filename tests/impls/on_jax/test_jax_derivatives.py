"""Second derivatives of JAX's losses: right in forward mode over reverse mode.

Losses by loops refuse reverse mode over reverse mode in one line.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from vocabench.harness import layers
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.on_jax.native import native

pytestmark = pytest.mark.many_cells

VOCAB, DIM = 40, 6
BY_LOOPS = [("huffman", "pairs_256"), ("sohsm", "tiles_8"), ("class_hsm", "tiles_8"), ("adaptive_softmax", "")]


@pytest.mark.many_cells
@pytest.mark.parametrize(("method", "form"), BY_LOOPS)
def test_second_derivatives_in_reverse_mode_are_refused_in_one_line(method, form):
    options: dict[str, Any] = {"projection": "linear"} if method == "sohsm" else {}
    layer = native(replace(layers.spec(method, counts=zipf_counts(VOCAB), dim=DIM, **options), form=form))
    params, structure = layer.init()
    rng = np.random.default_rng(0)
    hidden, direction = (jnp.asarray(rng.normal(size=(4, DIM)), jnp.float32) for _ in range(2))
    loss = partial(layer.loss, params, structure, targets=jnp.arange(4) * 9, reduction="sum")
    gradient = jax.jit(jax.grad(lambda hidden: loss(hidden)))

    with pytest.raises(BadInput, match=r"^second derivatives of a loss in reverse mode: allowed: ") as caught:
        jax.grad(lambda hidden: (gradient(hidden) * direction).sum())(hidden)
    assert "\n" not in str(caught.value)
    _, product = jax.jvp(gradient, (hidden,), (direction,))
    step = 1e-2
    expected = (gradient(hidden + step * direction) - gradient(hidden - step * direction)) / (2 * step)
    np.testing.assert_allclose(product, expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("method", ["sampled_softmax", "nce", "negative_sampling"])
def test_sampled_losses_have_second_derivatives_in_both_modes(method):
    layer = native(layers.spec(method, counts=zipf_counts(VOCAB), dim=DIM))
    params, structure = layer.init()
    rng = np.random.default_rng(0)
    hidden, targets = jnp.asarray(rng.normal(size=(4, DIM)), jnp.float32), jnp.array([0, 9, 9, 27])
    extra: dict[str, Any] = {name: jnp.asarray(value) for name, value in layer.spec.draw_extra(rng).items()}
    point = params, hidden
    direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), point)

    def loss(point):
        params, hidden = point
        return layer.loss(params, structure, hidden, targets, reduction="sum", **extra)

    gradient = jax.jit(jax.grad(loss))
    _, product = jax.jvp(gradient, (point,), (direction,))
    in_reverse = jax.vjp(gradient, point)[1](direction)[0]  # the same, as second derivatives are symmetric
    step = 1e-2
    above, below = (jax.tree.map(lambda x, d, s=sign: x + s * step * d, point, direction) for sign in (1, -1))
    expected = jax.tree.map(lambda one, other: (one - other) / (2 * step), gradient(above), gradient(below))
    for values in (product, in_reverse):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-2, atol=5e-3), values, expected)
