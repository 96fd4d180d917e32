"""Sampling with a temperature, from the likeliest words (see `calls.Sampling`)."""

from __future__ import annotations

import tensorflow as tf

from vocabench.impls.calls import Sampling
from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, draw

_COLDEST = 1e-30  # a temperature at which only the likeliest words remain


def of_all(log_probs_NV: Tensor, uniforms_N: Tensor, options: Sampling) -> Tensor:
    """Return (N,) words drawn by temperature and `top_p`."""
    if options.top_p is not None and cpp_kernels.draws_from(log_probs_NV):
        return cpp_kernels.nucleus(log_probs_NV, uniforms_N, max(options.temperature, _COLDEST), options.top_p)
    scaled_NV = _scaled(log_probs_NV, options.temperature)
    if options.top_p is None:
        return draw(tf.nn.softmax(scaled_NV), uniforms_N)
    values_NV, ids_NV = tf.math.top_k(scaled_NV, scaled_NV.shape[1])  # ties by lower id
    return _of_ranked(values_NV, ids_NV, uniforms_N, options.top_p)


def of_best(values_NK: Tensor, ids_NK: Tensor, uniforms_N: Tensor, options: Sampling) -> Tensor:
    """Return (N,) words drawn from the `top_k` likeliest, whose log-probabilities fall from left to right."""
    return _of_ranked(_scaled(values_NK, options.temperature), ids_NK, uniforms_N, options.top_p)


def _of_ranked(values_NK: Tensor, ids_NK: Tensor, uniforms_N: Tensor, top_p: float | None) -> Tensor:
    kept_NK = tf.nn.softmax(values_NK)
    if top_p is not None:
        kept_NK = tf.where(tf.cumsum(kept_NK, axis=1, exclusive=True) < top_p, kept_NK, tf.zeros_like(kept_NK))
    return tf.gather(ids_NK, draw(kept_NK, uniforms_N), batch_dims=1)


def _scaled(log_probs_NK: Tensor, temperature: float) -> Tensor:
    """Return log-probabilities over the temperature, shifted so that the smallest temperature overflows nothing."""
    highest_N1 = tf.reduce_max(log_probs_NK, axis=1, keepdims=True)
    return (log_probs_NK - highest_N1) / max(temperature, _COLDEST)
