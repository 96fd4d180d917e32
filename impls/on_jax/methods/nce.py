"""Noise-contrastive estimation in JAX. See `impls/on_numpy/methods/nce.py` for the definition."""

from __future__ import annotations

import jax

from vocabench.impls.on_jax.ops.arrays import Array
from vocabench.impls.on_jax.sampled import SampledLayer


class NoiseContrastiveEstimation(SampledLayer):
    """-log sigma(x_t) - sum over the sampled words of log sigma(-x_w), with x = s - log Z - log expected count."""

    def contrast(self, target_N: Array, sampled_NS: Array) -> Array:
        return jax.nn.softplus(-target_N) + jax.nn.softplus(sampled_NS).sum(axis=1)


LAYER = NoiseContrastiveEstimation
