"""Second derivatives of JAX's losses by loops: right in forward mode over reverse mode, or refused in one line."""

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
