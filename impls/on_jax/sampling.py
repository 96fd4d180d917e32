"""Sampling with a temperature, from the likeliest words (see `calls.Sampling`)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vocabench.impls.calls import Sampling
from vocabench.impls.on_jax.ops import cpp_kernels
from vocabench.impls.on_jax.ops.arrays import Array, draw, pick

_BELOW_ONE = 1 - 2.0**-24  # the largest float32 below 1
_COLDEST = 1e-30  # a temperature at which only the likeliest words remain


def drawn_part(log_sum_NP: Array, uniforms_N: Array) -> tuple[Array, Array]:
    """Draw a part of the words for each token, and return it with the uniform number that draws a word of the part.

    Args:
        log_sum_NP: Log-sum-exp of the logits of each part, whose words are consecutive.
        uniforms_N: Uniform numbers; each takes the word whose cumulative probability exceeds it.
    """
    share_NP = jax.nn.softmax(log_sum_NP, axis=1)
    part_N = draw(share_NP, uniforms_N)
    before_N, own_N = pick(jnp.cumsum(share_NP, axis=1) - share_NP, part_N), pick(share_NP, part_N)
    return part_N, jnp.clip((uniforms_N - before_N) / own_N, 0, _BELOW_ONE)


def of_all(log_probs_NV: Array, uniforms_N: Array, options: Sampling) -> Array:
    """Return (N,) words drawn by temperature and `top_p`."""
    if options.top_p is not None and cpp_kernels.draws_from(log_probs_NV):
        return cpp_kernels.nucleus(log_probs_NV, uniforms_N, max(options.temperature, _COLDEST), options.top_p)
    scaled_NV = _scaled(log_probs_NV, options.temperature)
    if options.top_p is None:
        return draw(jax.nn.softmax(scaled_NV, axis=1), uniforms_N)
    values_NV, ids_NV = jax.lax.top_k(scaled_NV, scaled_NV.shape[1])  # ties by lower id
    return _of_ranked(values_NV, ids_NV, uniforms_N, options.top_p)


def of_best(values_NK: Array, ids_NK: Array, uniforms_N: Array, options: Sampling) -> Array:
    """Return (N,) words drawn from the `top_k` likeliest, whose log-probabilities fall from left to right."""
    return _of_ranked(_scaled(values_NK, options.temperature), ids_NK, uniforms_N, options.top_p)


def _of_ranked(values_NK: Array, ids_NK: Array, uniforms_N: Array, top_p: float | None) -> Array:
    kept_NK = jax.nn.softmax(values_NK, axis=1)
    if top_p is not None:
        before_NK = jnp.cumsum(kept_NK, axis=1) - kept_NK
        kept_NK = jnp.where(before_NK < top_p, kept_NK, 0)
    return jnp.take_along_axis(ids_NK, draw(kept_NK, uniforms_N)[:, None], axis=1)[:, 0]


def _scaled(log_probs_NK: Array, temperature: float) -> Array:
    """Return log-probabilities over the temperature, shifted so that the smallest temperature overflows nothing."""
    return (log_probs_NK - log_probs_NK.max(axis=1, keepdims=True)) / max(temperature, _COLDEST)
