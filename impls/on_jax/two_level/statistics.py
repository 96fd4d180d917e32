"""The statistics q(w, c), from which SOHSM re-organizes itself (Shen et al. 2017, equation 9), on the device.

`impls/structures/statistics.py` defines the weights of old values and new samples.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from vocabench.impls.on_jax.device import put
from vocabench.impls.on_jax.ops.arrays import Array, Tree
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures.statistics import statistics_dtype

_MOST = 2**30  # counts do not grow beyond it, so that they fit int32


def blank(spec: LayerSpec, clusters: int) -> Tree:
    """Return the entries of `structure` that training changes, before the first batch.

    These are `statistics` (V, C), the moving averages of log2 P(c | h) over the occurrences of each word; `seen` (V,),
    how often each word was a target; `frequency` (V,), how often it occurs in the training text; and
    `reorganizations` ().
    """
    size = spec.vocab, clusters
    return {
        "statistics": jnp.zeros(size, statistics_dtype(*size)),
        "seen": jnp.zeros(spec.vocab, jnp.int32),
        "frequency": put(np.maximum(spec.counts, 1), jnp.float32),
        "reorganizations": put(0, jnp.int32),
    }


def updated(structure: Tree, log_cluster_NC: Array, targets_N: Array, kind: str) -> Tree:
    """Return the structure after one more batch.

    Args:
        structure: The structure, with the entries of `blank`.
        log_cluster_NC: log P(c | h).
        targets_N: The targets; those outside the vocabulary change nothing.
        kind: One of `statistics.SMOOTHINGS`.
    """
    statistics_VC, seen_V = structure["statistics"], structure["seen"]
    vocab, tokens = statistics_VC.shape[0], targets_N.shape[0]
    real_N = (targets_N >= 0) & (targets_N < vocab)
    words_N = jnp.where(real_N, targets_N, vocab)  # beyond the last row: read as 0, and dropped when written
    times_V = jnp.zeros_like(seen_V).at[words_N].add(1, mode="drop")
    rows_N = jnp.arange(tokens, dtype=seen_V.dtype)
    # One row of the batch for each word, and the last place for tokens without a word.
    first_V = jnp.zeros_like(seen_V).at[words_N].set(rows_N, mode="drop")
    first_N = first_V.at[words_N].get(mode="fill", fill_value=tokens)

    def of_words(by_word_V: Array) -> Array:
        return by_word_V.at[words_N].get(mode="fill", fill_value=1).astype(jnp.float32)

    keep_N, share_N = _weights(of_words(times_V), of_words(seen_V), of_words(structure["frequency"]), kind)
    log2_NC = jnp.where(real_N[:, None], log_cluster_NC.astype(jnp.float32), 0) * (share_N / math.log(2))[:, None]
    sums_NC = jnp.zeros_like(log2_NC).at[first_N].add(log2_NC, mode="drop")
    old_NC = statistics_VC.at[words_N].get(mode="fill", fill_value=0).astype(jnp.float32)
    new_NC = keep_N[:, None] * old_NC + sums_NC.at[first_N].get(mode="fill", fill_value=0)
    return {
        **structure,
        "statistics": statistics_VC.at[words_N].set(new_NC.astype(statistics_VC.dtype), mode="drop"),  # equal rows
        "seen": jnp.minimum(seen_V, _MOST) + times_V,
    }


def _weights(times_N: Array, seen_N: Array, frequency_N: Array, kind: str) -> tuple[Array, Array]:
    """Return the weight of each word's old value, and of each of its tokens in this batch."""
    decay_N = times_N * (-jnp.log(frequency_N) if kind == "printed" else jnp.log1p(-1 / frequency_N))
    keep_N, all_N = jnp.exp(decay_N), -jnp.expm1(decay_N)
    if kind == "running":
        total_N = seen_N + times_N
        keep_N, all_N = jnp.minimum(seen_N / total_N, keep_N), jnp.maximum(times_N / total_N, all_N)
    return keep_N, all_N / times_N
