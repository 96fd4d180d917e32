"""Derivatives in forward mode: those of reverse mode, or refused."""

import re

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput, Unsupported

pytestmark = pytest.mark.many_cells

VOCAB, DIM, TOKENS = 60, 16, 5
FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]


def inputs():
    rng = np.random.default_rng(0)
    hidden_ND, direction_ND = rng.standard_normal((2, TOKENS, DIM)).astype(np.float32)
    return hidden_ND, direction_ND, np.arange(TOKENS)


def in_torch(spec, extra):
    """Return the derivative along a direction in reverse mode, and a function that computes it in forward mode."""
    import torch

    from vocabench.impls.on_torch import adapter

    layer = adapter.native(spec)
    hidden_ND, direction_ND, targets_N = map(torch.from_numpy, inputs())
    extra = {name: torch.tensor(ids) for name, ids in extra.items()}
    hidden_ND.requires_grad_()
    layer(hidden_ND, targets_N, **extra).backward()
    assert hidden_ND.grad is not None

    def forward():
        given = hidden_ND.detach(), direction_ND
        return torch.func.jvp(lambda hidden_ND: layer(hidden_ND, targets_N, **extra), given[:1], given[1:])[1].item()

    return (hidden_ND.grad * direction_ND).sum().item(), forward


def in_tensorflow(spec, extra):
    from vocabench.impls.on_tensorflow import adapter
    from vocabench.impls.on_tensorflow.adapter import tf

    layer = adapter.native(spec)
    hidden_ND, direction_ND, targets_N = map(tf.constant, inputs())
    extra = {name: tf.constant(ids) for name, ids in extra.items()}
    with tf.GradientTape() as tape:
        tape.watch(hidden_ND)
        loss = layer(hidden_ND, targets_N, **extra)
    reverse = float(tf.reduce_sum(tape.gradient(loss, hidden_ND) * direction_ND))

    def forward():
        with tf.autodiff.ForwardAccumulator(hidden_ND, direction_ND) as accumulator:
            loss = layer(hidden_ND, targets_N, **extra)
        return float(accumulator.jvp(loss))

    return reverse, forward


def in_jax(spec, extra):
    import jax
    import jax.numpy as jnp

    from vocabench.impls.on_jax import adapter

    layer = adapter.native(spec)
    params, structure = layer.init(0)
    hidden_ND, direction_ND, targets_N = map(jnp.asarray, inputs())
    extra = {name: jnp.asarray(ids) for name, ids in extra.items()}

    def loss(hidden_ND):
        return layer.loss(params, structure, hidden_ND, targets_N, **extra)

    reverse = float((jax.grad(loss)(hidden_ND) * direction_ND).sum())
    return reverse, lambda: float(jax.jvp(loss, (hidden_ND,), (direction_ND,))[1])


IN = {"torch": in_torch, "tensorflow": in_tensorflow, "jax": in_jax}
REFUSALS = {"torch": "autograd.Function|functorch", "tensorflow": "derivative of", "jax": "custom_vjp"}


@pytest.mark.parametrize(("framework", "method"), [(name, m) for name in FRAMEWORKS for m in registry.methods(name)])
def test_derivatives_in_forward_mode_are_right_or_refused(framework, method):
    spec = layers.spec(method, counts=zipf_counts(VOCAB), dim=DIM)
    extra = spec.draw_extra(np.random.default_rng(0))
    try:
        reverse, forward = IN[framework](spec, extra)
    except Unsupported as error:
        pytest.skip(str(error))
    refusal = ""
    try:
        assert forward() == pytest.approx(reverse, rel=1e-3, abs=1e-5)
    except (BadInput, RuntimeError, TypeError) as error:
        refusal = str(error)
    assert not refusal or re.search(REFUSALS[framework], refusal), refusal
