"""Full softmax in JAX: one product and a log-sum-exp. See `impls/on_numpy/methods/full_softmax.py`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.on_jax.ops.arrays import Array, Tree, log_softmax, pick, product, wide
from vocabench.impls.on_jax.ops.topk import best_of_logits


class FullSoftmax(OutputLayer):
    """log P(w | h) = h.W_w + b_w - logsumexp(h W^T + b). Parameters: `weight` (V, D) and `bias` (V,), which the option
    `bias=False` leaves out.
    """

    def _logits(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        return self._plus_bias(product(hidden_ND, params["weight"]), params)

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        logits_NV = self._logits(params, structure, hidden_ND)
        return jax.nn.logsumexp(logits_NV, axis=1) - pick(logits_NV, targets_N)

    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        return log_softmax(self._logits(params, structure, hidden_ND))

    def _target_logits(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        weight_VD, bias_V = params["weight"], self._bias(params)
        kind = wide(weight_VD.dtype)
        cast_ND = hidden_ND.astype(weight_VD.dtype).astype(kind)
        return (cast_ND * weight_VD[targets_N].astype(kind)).sum(axis=1) + bias_V[targets_N].astype(kind)

    def _mean_logits(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        weight_VD, bias_V = params["weight"], self._bias(params)
        kind = wide(weight_VD.dtype)
        cast_ND = hidden_ND.astype(weight_VD.dtype).astype(kind)
        return cast_ND @ weight_VD.mean(axis=0, dtype=kind) + bias_V.mean(dtype=kind)

    # Some of the words, of a layer whose words are split over devices (`parallel/softmax.py`).
    def own_sums(self, params: Tree, hidden_ND: Array, targets_N: Array) -> tuple[Array, Array]:
        """Return the (N,) log-sum-exp of the logits of these words, and the (N,) logits of the targets.

        Args:
            params: `weight` and `bias` of the words.
            hidden_ND: Hidden vectors.
            targets_N: Numbers of words among these; -1 where the target is another word, whose logit counts as 0.
        """
        logits_NV = self._logits(params, {}, hidden_ND)
        target_N = jnp.where(targets_N >= 0, pick(logits_NV, jnp.maximum(targets_N, 0)), 0)
        return jax.nn.logsumexp(logits_NV, axis=1), target_N

    def _own_target_logits(self, params: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        target_N = self._target_logits(params, {}, hidden_ND, jnp.maximum(targets_N, 0))
        return jnp.where(targets_N >= 0, target_N, 0)

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        return *best_of_logits(self._logits(params, structure, hidden_ND), k), jnp.ones(hidden_ND.shape[0], jnp.float32)


LAYER = FullSoftmax
