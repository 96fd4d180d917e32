"""Sampled softmax in JAX. See `impls/on_numpy/methods/sampled_softmax.py` for the definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vocabench.impls.on_jax.ops.arrays import Array
from vocabench.impls.on_jax.sampled import SampledLayer


class SampledSoftmax(SampledLayer):
    """Cross-entropy over the target and the sampled words, with the log expected count subtracted from each score."""

    def contrast(self, target_N: Array, sampled_NS: Array) -> Array:
        return jax.nn.logsumexp(jnp.concatenate([target_N[:, None], sampled_NS], axis=1), axis=1) - target_N


LAYER = SampledSoftmax
