"""The statistics q(w, c), from which SOHSM re-organizes itself (Shen et al. 2017, equation 9), on the device.

`impls/structures/statistics.py` defines the weights of old values and new samples.
"""

from __future__ import annotations

import math

import tensorflow as tf

from vocabench.impls.on_tensorflow.ops.tensors import Tensor, in_dtype


def update(
    statistics: tf.Variable,
    seen: tf.Variable,
    log_cluster_NC: Tensor,
    targets_N: Tensor,
    frequency_V: Tensor,
    kind: str,
) -> None:
    """Update `statistics` (V, C) and `seen` (V,) with a batch. A replica updates its own copy of them.

    Args:
        statistics: The moving averages of log2 P(c | h) over the occurrences of each word.
        seen: int64: how often each word was a target so far.
        log_cluster_NC: log P(c | h).
        targets_N: int32 targets; those outside the vocabulary change nothing.
        frequency_V: float32 counts of the words in the training text, at least 1.
        kind: One of `statistics.SMOOTHINGS`.
    """
    vocab = seen.shape[0]
    real_N = (targets_N >= 0) & (targets_N < vocab)
    words_N = tf.where(real_N, targets_N, tf.zeros_like(targets_N))
    times_V = tf.math.unsorted_segment_sum(tf.cast(real_N, tf.int32), words_N, vocab)
    # One row of the batch for each word that occurs.
    first_V = tf.math.unsorted_segment_min(tf.range(tf.size(words_N)), words_N, vocab)
    counts = tf.gather(times_V, words_N), tf.gather(tf.convert_to_tensor(seen), words_N)
    keep_N, share_N = _weights(*counts, tf.gather(frequency_V, words_N), kind)
    tf.raw_ops.AssignAddVariableOp(resource=seen.handle, value=tf.cast(times_V, tf.int64))

    first_N = tf.gather(first_V, words_N)
    weight_N = tf.where(real_N, share_N / math.log(2), tf.zeros_like(share_N))
    # The product is 0 where the weight is 0, even if a logarithm is infinite or NaN.
    samples_NC = tf.math.multiply_no_nan(in_dtype(log_cluster_NC, tf.float32), weight_N[:, None])
    sums_NC = tf.math.unsorted_segment_sum(samples_NC, first_N, tf.size(first_N))
    old_NC = in_dtype(tf.gather(statistics, words_N), tf.float32)
    new_NC = keep_N[:, None] * old_NC + tf.gather(sums_NC, first_N)  # equal values in the rows of one word
    tf.raw_ops.ResourceScatterNdUpdate(
        ref=statistics.handle, indices=words_N[:, None], updates=in_dtype(new_NC, statistics.dtype)
    )


def _weights(times_N: Tensor, seen_N: Tensor, frequency_N: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Return the weight of each word's old value, and of each of its tokens in this batch."""
    new_N = tf.cast(tf.maximum(times_N, 1), tf.float32)
    decay_N = new_N * (-tf.math.log(frequency_N) if kind == "printed" else tf.math.log1p(-1 / frequency_N))
    keep_N, all_N = tf.exp(decay_N), -tf.math.expm1(decay_N)
    if kind == "running":
        seen_N = tf.cast(seen_N, tf.float32)
        total_N = seen_N + new_N
        keep_N, all_N = tf.minimum(seen_N / total_N, keep_N), tf.maximum(new_N / total_N, all_N)
    absent_N = tf.equal(times_N, 0)
    share_N = tf.where(absent_N, tf.zeros_like(all_N), all_N / new_N)
    return tf.where(absent_N, tf.ones_like(keep_N), keep_N), share_N


def joined(log_cluster_NC: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return the batches of all replicas of a `tf.distribute.Strategy`, in the order of the replicas."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return log_cluster_NC, targets_N
    return context.all_gather(log_cluster_NC, axis=0), context.all_gather(targets_N, axis=0)
