"""What `inplace_softmax` is for: one array of the logits' size, forward and backward together."""

from typing import Any

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts

N, D, V = 64, 8, 500


def needs(framework):
    return pytest.mark.skipif(framework not in registry.installed_frameworks(), reason=f"needs {framework}")


def spec_of(method):
    return layers.spec(method, counts=zipf_counts(V), dim=D, seed=2)


@needs("torch")
@pytest.mark.parametrize(("method", "arrays"), [("inplace_softmax", 1), ("full_softmax", 4)])
def test_pytorch_makes_one_array_of_the_logits_size(method, arrays):
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from vocabench.impls.on_torch import adapter

    seen: dict[int, Any] = {}  # storages by address: kept, so that none is used twice

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.untyped_storage().nbytes() >= 4 * N * V:
                seen[result.untyped_storage().data_ptr()] = result
            return result

    layer = adapter.native(spec_of(method))
    hidden_ND = torch.randn(N, D, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with Watch():
        layer(hidden_ND, torch.arange(N)).backward()
    assert len(seen) == arrays


@needs("jax")
def test_jax_takes_less_memory_than_full_softmax():
    import jax
    import jax.numpy as jnp

    from vocabench.impls.on_jax import adapter

    def temporary(method):
        layer = adapter.native(spec_of(method))
        params = {"weight": jnp.zeros((V, D)), "bias": jnp.zeros(V)}
        grads = jax.jit(jax.grad(lambda p, h, y: layer.loss(p, {}, h, y), (0, 1)))
        compiled = grads.lower(params, jnp.zeros((N, D)), jnp.zeros(N, jnp.int32)).compile()
        analysis: Any = compiled.memory_analysis()
        return analysis.temp_size_in_bytes

    array = 4 * N * V
    assert temporary("inplace_softmax") < 2.2 * array
    assert temporary("inplace_softmax") < temporary("full_softmax") - 0.5 * array


@pytest.mark.parametrize("framework", [f for f in registry.installed_frameworks() if f != "numpy"])
def test_logits_far_apart_agree(framework):
    """A target whose exponential is 0 beside the best word's."""
    layer = layers.create(framework, "inplace_softmax", counts=zipf_counts(60), dim=5, seed=1)
    shuffled = np.random.default_rng(0).permutation(60)
    layer.load({"weight": np.zeros((60, 5)), "bias": np.linspace(-500, 500, 60)[shuffled]})
    inputs = batch(layer.spec.counts, tokens=23, dim=5, seed=1)
    assert [str(c) for c in agreement.check_layer(layer, inputs, k=9) if not c.agrees] == []
