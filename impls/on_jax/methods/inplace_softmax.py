"""Full softmax that keeps only the exponentials, in JAX. See `impls/on_numpy/methods/inplace_softmax.py`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vocabench.impls.on_jax.methods.full_softmax import FullSoftmax
from vocabench.impls.on_jax.ops.arrays import Array, Tree, wide


@jax.custom_vjp
def inplace_nll(hidden_ND: Array, weight_VD: Array, bias_V: Array, targets_N: Array) -> Array:
    """Return the (N,) negative log-likelihoods in nats. All floating arguments have the same dtype."""
    return _forward(hidden_ND, weight_VD, bias_V, targets_N)[0]


def _logits(hidden_ND: Array, weight_VD: Array, bias_V: Array) -> Array:
    """Return the (N, V) logits, with the bias as a column of the product where the logits are larger than the weights.

    XLA would repeat the addition of a separate bias for every reader, and store product and sum. The column needs a
    copy of the weights, so that it only pays for batches of at least D tokens.
    """
    tokens, dim = hidden_ND.shape
    if tokens < dim:
        return jnp.matmul(hidden_ND, weight_VD.T) + bias_V
    hidden_NE = jnp.concatenate([hidden_ND, jnp.ones((tokens, 1), hidden_ND.dtype)], axis=1)
    return jnp.matmul(hidden_NE, jnp.concatenate([weight_VD, bias_V[:, None]], axis=1).T)


def _exponentials(hidden_ND, weight_VD, bias_V):  # type: ignore[no-untyped-def]
    logits_NV = _logits(hidden_ND, weight_VD, bias_V)
    highest_N = logits_NV.max(axis=1)
    exp_NV = jnp.exp(logits_NV - highest_N[:, None])
    return highest_N, exp_NV, exp_NV.sum(axis=1)


def _forward(hidden_ND, weight_VD, bias_V, targets_N):  # type: ignore[no-untyped-def]
    highest_N, exp_NV, sum_N = _exponentials(hidden_ND, weight_VD, bias_V)
    # Scores of targets are computed again, so that XLA can overwrite the logits with the exponentials.
    target_N = (hidden_ND * weight_VD[targets_N]).sum(axis=1) + bias_V[targets_N]
    return highest_N + jnp.log(sum_N) - target_N, (hidden_ND, weight_VD, targets_N, exp_NV, sum_N)


def _backward(kept, dnll_N):  # type: ignore[no-untyped-def]
    hidden_ND, weight_VD, targets_N, exp_NV, sum_N = kept
    dnll_N1, scale_N1 = dnll_N[:, None], (dnll_N / sum_N)[:, None]
    dhidden_ND = jnp.matmul(exp_NV, weight_VD) * scale_N1 - weight_VD[targets_N] * dnll_N1
    dweight_VD = jnp.matmul(exp_NV.T, hidden_ND * scale_N1).at[targets_N].add(-hidden_ND * dnll_N1)
    dbias_V = jnp.matmul(scale_N1[:, 0], exp_NV).at[targets_N].add(-dnll_N)
    return dhidden_ND, dweight_VD, dbias_V, None


inplace_nll.defvjp(_forward, _backward)


@jax.custom_vjp
def inplace_log_sum(hidden_ND: Array, weight_VD: Array, bias_V: Array) -> Array:
    """Return the (N,) log-sum-exp of the logits. All arguments have the same dtype."""
    return _log_sum(hidden_ND, weight_VD, bias_V)[0]


def _log_sum(hidden_ND, weight_VD, bias_V):  # type: ignore[no-untyped-def]
    highest_N, exp_NV, sum_N = _exponentials(hidden_ND, weight_VD, bias_V)
    return highest_N + jnp.log(sum_N), (hidden_ND, weight_VD, exp_NV, sum_N)


def _back_of_log_sum(kept, dlog_sum_N):  # type: ignore[no-untyped-def]
    hidden_ND, weight_VD, exp_NV, sum_N = kept
    scale_N1 = (dlog_sum_N / sum_N)[:, None]
    dweight_VD = jnp.matmul(exp_NV.T, hidden_ND * scale_N1)
    return jnp.matmul(exp_NV, weight_VD) * scale_N1, dweight_VD, jnp.matmul(scale_N1[:, 0], exp_NV)


inplace_log_sum.defvjp(_log_sum, _back_of_log_sum)


class InplaceSoftmax(FullSoftmax):
    """Full softmax that keeps only the exponentials for the gradient; in half precision, plain full softmax.

    Parameters: `weight` (V, D) and `bias` (V,), as in full softmax.
    """

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        kind = params["weight"].dtype
        if kind != wide(kind):
            return super()._nll(params, structure, hidden_ND, targets_N)
        return inplace_nll(hidden_ND.astype(kind), params["weight"], self._bias(params), targets_N)

    def own_sums(self, params: Tree, hidden_ND: Array, targets_N: Array) -> tuple[Array, Array]:
        kind = params["weight"].dtype
        if kind != wide(kind):
            return super().own_sums(params, hidden_ND, targets_N)
        log_sum_N = inplace_log_sum(hidden_ND.astype(kind), params["weight"], self._bias(params))
        return log_sum_N, self._own_target_logits(params, hidden_ND, targets_N)

    def formulation(self) -> str:
        return "exponentials kept for the gradient"


LAYER = InplaceSoftmax
