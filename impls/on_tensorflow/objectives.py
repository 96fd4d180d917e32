"""Losses with label smoothing, z-loss and capped logits, and entropies, without an (N, V) array.

Where all log-probabilities or logits are needed, they are computed for some tokens at a time, and again in the backward
pass.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from vocabench.impls.calls import Objective
from vocabench.impls.on_tensorflow.ops.tensors import Tensor

_AT_ONCE = 2**24  # log-probabilities that are computed at a time


def in_blocks(compute: Callable[..., Tensor], vocab: int, *by_token: Tensor) -> Tensor:
    """Return `compute` of all tokens, from blocks of tokens whose (B, V) arrays are not kept for the backward pass.

    If the number of tokens is not known while tracing, there is one block.
    """
    tokens, width = by_token[0].shape[0], max(1, _AT_ONCE // vocab)
    if tokens is None or tokens <= width:
        return compute(*by_token)
    blocks = zip(*(tf.split(array, _sizes(tokens, width)) for array in by_token), strict=True)
    return tf.concat([tf.recompute_grad(compute)(*block) for block in blocks], axis=0)


def _sizes(tokens: int, width: int) -> list[int]:
    return [min(width, tokens - start) for start in range(0, tokens, width)]


def entropy(log_probs_NV: Tensor) -> Tensor:
    """Return the (N,) entropies in nats."""
    return -tf.reduce_sum(tf.exp(log_probs_NV) * log_probs_NV, axis=1)


def entropy_within(scores_NGS: Tensor) -> Tensor:
    """Return the (N, G) entropies in nats of the members of each group, from their scores.

    Those of empty slots are finite, and so low that their exponential is zero.
    """
    log_within_NGS = tf.nn.log_softmax(scores_NGS)
    return -tf.reduce_sum(tf.exp(log_within_NGS) * log_within_NGS, axis=2)


def capped(logits_NV: Tensor, softcap: float) -> Tensor:
    return softcap * tf.tanh(logits_NV / softcap)


def losses_of_logits(logits_NV: Tensor, targets_N: Tensor, objective: Objective) -> Tensor:
    """Return the (N,) losses from logits that have been capped."""
    log_sum_N, target_N = tf.reduce_logsumexp(logits_NV, axis=1), tf.gather(logits_NV, targets_N, batch_dims=1)
    losses_N = log_sum_N - target_N
    if objective.label_smoothing:
        losses_N += objective.label_smoothing * (target_N - tf.reduce_mean(logits_NV, axis=1))
    return losses_N + objective.z_loss * tf.square(log_sum_N) if objective.z_loss else losses_N
