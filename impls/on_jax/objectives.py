"""Losses with label smoothing, z-loss and capped logits, and entropies, without an (N, V) array.

Where all log-probabilities or logits are needed, they are computed for some tokens at a time, and again in the backward
pass.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from vocabench.impls.calls import Objective
from vocabench.impls.on_jax.ops.arrays import Array, is_known, pick

_AT_ONCE = 2**24  # log-probabilities that are computed at a time


def in_blocks(compute: Callable[..., Array], vocab: int, *by_token: Array) -> Array:
    """Return `compute` of all tokens, from blocks of tokens whose (B, V) arrays are not kept for the backward pass."""
    tokens, width = by_token[0].shape[0], max(1, _AT_ONCE // vocab)
    if not is_known(by_token[0]) or tokens <= width:
        return compute(*by_token)
    count = -(-tokens // width)

    def in_rows(array: Array) -> Array:
        spare = jnp.zeros((count * width - tokens, *array.shape[1:]), array.dtype)
        return jnp.concatenate([array, spare]).reshape(count, width, *array.shape[1:])

    made = jax.lax.map(lambda block: jax.checkpoint(compute)(*block), tuple(in_rows(array) for array in by_token))
    return made.reshape(count * width, *made.shape[2:])[:tokens]


def entropy(log_probs_NV: Array) -> Array:
    """Return the (N,) entropies in nats."""
    return -(jnp.exp(log_probs_NV) * log_probs_NV).sum(axis=1)


def entropy_within(scores_NGS: Array) -> Array:
    """Return the (N, G) entropies in nats of the members of each group, from their scores; -inf in empty slots."""
    log_within_NGS = jax.nn.log_softmax(scores_NGS, axis=2)
    return -(jnp.exp(log_within_NGS) * jnp.where(jnp.isneginf(scores_NGS), 0.0, log_within_NGS)).sum(axis=2)


def capped(logits_NV: Array, softcap: float) -> Array:
    return softcap * jnp.tanh(logits_NV / softcap)


def losses_of_logits(logits_NV: Array, targets_N: Array, objective: Objective) -> Array:
    """Return the (N,) losses from logits that have been capped."""
    log_sum_N, target_N = jax.nn.logsumexp(logits_NV, axis=1), pick(logits_NV, targets_N)
    return losses_of_sums(log_sum_N, target_N, lambda: logits_NV.mean(axis=1), objective)


def losses_of_sums(log_sum_N: Array, target_N: Array, mean_logits: Callable[[], Array], objective: Objective) -> Array:
    """Return the (N,) losses from the log-sum-exp of the logits, the targets' logits and the mean logits."""
    losses_N = log_sum_N - target_N
    if objective.label_smoothing:
        losses_N = losses_N + objective.label_smoothing * (target_N - mean_logits())
    return losses_N + objective.z_loss * log_sum_N**2 if objective.z_loss else losses_N
