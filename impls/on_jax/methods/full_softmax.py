"""Full softmax in JAX: one product and a log-sum-exp. See `impls/on_numpy/methods/full_softmax.py`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vocabench.impls.on_jax.layer import Array, OutputLayer, Tree, log_softmax, pick, product
from vocabench.impls.on_jax.ops.topk import best_of_logits


class FullSoftmax(OutputLayer):
    """log P(w | h) = h.W_w + b_w - logsumexp(h W^T + b). Parameters: `weight` (V, D) and `bias` (V,)."""

    def _logits(self, params: Tree, hidden_ND: Array) -> Array:
        return product(hidden_ND, params["weight"]) + params["bias"]

    def nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        logits_NV = self._logits(params, hidden_ND)
        return jax.nn.logsumexp(logits_NV, axis=1) - pick(logits_NV, targets_N)

    def log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        return log_softmax(self._logits(params, hidden_ND))

    def search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        return *best_of_logits(self._logits(params, hidden_ND), k), jnp.ones(len(hidden_ND), jnp.float32)


LAYER = FullSoftmax
