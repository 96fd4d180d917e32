"""Decoding of a two-level layer without the whole vocabulary: exact top-k, beam, sample.

For top-k, no word of a cluster is likelier than the cluster, so clusters are expanded by falling P(c), a few of every
row at a time, until the next one of nearly every row is less likely than the k-th best word found. The rows left over,
and whole batches of flat distributions, are scored whole: by one product, and the k best words are looked for in the k
clusters of the best bests.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from impls.on_jax import _clusters
from impls.on_jax._best import best_by_id, settle, top_k
from impls.on_jax._layer import Array, draw, product

_TOGETHER = 8  # clusters of a row expanded at a time
_WHOLE_SHARE = 0.15  # of a row's clusters: beyond it one product for all is cheaper than gathered ones
_LEFT_SHARE = 1 / 16  # of the rows: so few are scored whole in place of expanding all rows further

Found = tuple[Array, Array, Array]  # values and ids (N, K), and (N,) the share of clusters expanded


class WordsByCluster(NamedTuple):
    """The lower level of a two-level layer.

    Attributes:
        slab_CSD: Word vectors by cluster and slot.
        added_CS: What a word's score gets on top, its bias or 0; -inf in an empty slot.
        word_CS: The word in each slot, -1 where it is empty.
    """

    slab_CSD: Array
    added_CS: Array
    word_CS: Array

    def in_cluster(self, hidden_ND: Array, row_P: Array, cluster_P: Array) -> Array:
        """(P, S) log P(w | c, h) of pairs of a row and a cluster; for a cluster beyond the last, of no meaning."""
        scores_PS = _clusters.pair_scores(hidden_ND, self.slab_CSD, row_P, cluster_P)
        return jax.nn.log_softmax(scores_PS + self.added_CS[cluster_P], axis=1)

    def joint(self, hidden_ND: Array, log_cluster_NC: Array, cluster_NM: Array) -> tuple[Array, Array]:
        """(N, M S) log P(c, w | h) of the words of some clusters of each row, and the words; -inf beyond the last."""
        rows, some = cluster_NM.shape
        row_P = jnp.repeat(jnp.arange(rows), some)
        in_cluster_NMS = self.in_cluster(hidden_ND, row_P, cluster_NM.ravel()).reshape(rows, some, -1)
        log_cluster_NM = jnp.take_along_axis(log_cluster_NC, cluster_NM, axis=1, mode="fill", fill_value=-jnp.inf)
        return (in_cluster_NMS + log_cluster_NM[:, :, None]).reshape(rows, -1), self.word_CS[cluster_NM].reshape(
            rows, -1
        )


def search(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int) -> Found:
    """Values and ids (N, K) of the k likeliest words, and (N,) the share of clusters expanded.

    Args:
        hidden_ND: What the word vectors are multiplied with.
        log_cluster_NC: log P(c | h).
        words: The words of each cluster, none of which is empty.
        k: From 1 to V.
    """
    clusters = log_cluster_NC.shape[1]
    step = min(clusters, max(_TOGETHER, -(-k // words.word_CS.shape[1])))

    def whole(hidden_ND: Array, log_cluster_NC: Array) -> Found:
        share_N = jnp.ones(len(hidden_ND), jnp.float32)
        return *_best_of_all(hidden_ND, log_cluster_NC, words, k), share_N

    def by_bounds(hidden_ND: Array, log_cluster_NC: Array) -> Found:
        found, open_N = _expanded(hidden_ND, log_cluster_NC, words, k, step)
        return settle(found, open_N, lambda rows_R: whole(hidden_ND[rows_R], log_cluster_NC[rows_R]))

    if k <= step:
        return by_bounds(hidden_ND, log_cluster_NC)
    # With more than `step` words asked for, one cluster at least gives two, so the k-th is at most half the likeliest
    # cluster: where many clusters reach that half, a few cannot settle the row.
    reaching_NC = log_cluster_NC >= log_cluster_NC.max(axis=1, keepdims=True) - math.log(2.0)
    return lax.cond(reaching_NC.mean() > _WHOLE_SHARE, whole, by_bounds, hidden_ND, log_cluster_NC)


def _expanded(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int, step: int) -> tuple[Found, Array]:
    """The best words of the likeliest clusters of each row, and (N,) whether another cluster may hold one of them."""
    rows, clusters = log_cluster_NC.shape
    most = min(clusters, step * math.ceil(max(step, _WHOLE_SHARE * clusters) / step))
    bound_NM, order_NM = top_k(log_cluster_NC, min(most + 1, clusters))
    nothing_N1 = jnp.full((rows, 1), -jnp.inf, bound_NM.dtype)
    bound_NM = jnp.concatenate([bound_NM] + [nothing_N1] * (most + step + 1 - bound_NM.shape[1]), axis=1)
    order_NM = jnp.pad(order_NM, ((0, 0), (0, most + step - order_NM.shape[1])), constant_values=clusters)

    def more(state: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        done, values_NK, ids_NK, done_N, open_N = state
        cluster_NM = jnp.where(open_N[:, None], lax.dynamic_slice_in_dim(order_NM, done, step, axis=1), clusters)
        joint_NF, word_NF = words.joint(hidden_ND, log_cluster_NC, cluster_NM)
        values = jnp.concatenate([values_NK, joint_NF], axis=1)
        values_NK, ids_NK = best_by_id(values, jnp.concatenate([ids_NK, word_NF], axis=1), k)
        done_N = jnp.where(open_N, done + step, done_N)
        # At equality a word of lower id may still come: only a bound strictly below settles a row.
        bound_N = lax.dynamic_index_in_dim(bound_NM, done + step, axis=1, keepdims=False)
        is_end = done + step >= clusters
        return done + step, values_NK, ids_NK, done_N, open_N & (bound_N >= values_NK[:, -1]) & ~is_end

    def going(state: tuple[Array, Array, Array, Array, Array]) -> Array:
        done, *_, open_N = state
        return (done == 0) | ((open_N.sum() > _LEFT_SHARE * rows) & (done < most))

    none_NK = jnp.full((rows, k), -jnp.inf, bound_NM.dtype)
    zero_N = jnp.zeros(rows, jnp.int32)
    start = (jnp.int32(0), none_NK, jnp.full((rows, k), -1, words.word_CS.dtype), zero_N, zero_N == 0)
    _, values_NK, ids_NK, done_N, open_N = lax.while_loop(going, more, start)
    share_N = jnp.minimum(done_N, clusters).astype(jnp.float32) / clusters
    return (values_NK, ids_NK, share_N), open_N


def _best_of_all(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int) -> tuple[Array, Array]:
    (rows, clusters), width = log_cluster_NC.shape, words.word_CS.shape[1]
    scores_NF = product(hidden_ND, words.slab_CSD.reshape(clusters * width, -1))
    scores_NCS = scores_NF.reshape(rows, clusters, width) + words.added_CS
    highest_NC = scores_NCS.max(axis=2)
    sum_NC = jnp.exp(scores_NCS - highest_NC[:, :, None]).sum(axis=2)
    shift_NC = log_cluster_NC - highest_NC - jnp.log(sum_NC)
    # k words lie in at most k clusters, those of the k highest bests; one more tells whether a tie was left out.
    wide = min(k + 1, clusters)
    bests_NM, chosen_NM = top_k(highest_NC + shift_NC, wide)

    def of_clusters(chosen_NM: Array) -> tuple[Array, Array]:
        joint_NMS = jnp.take_along_axis(scores_NCS, chosen_NM[:, :, None], axis=1)
        joint_NMS = joint_NMS + jnp.take_along_axis(shift_NC, chosen_NM, axis=1)[:, :, None]
        return best_by_id(joint_NMS.reshape(rows, -1), words.word_CS[chosen_NM].reshape(rows, -1), k)

    values_NK, ids_NK = of_clusters(chosen_NM[:, : min(k, clusters)])
    if wide <= k:
        return values_NK, ids_NK
    every_NC = jnp.broadcast_to(jnp.arange(clusters), (rows, clusters))
    tied = (bests_NM[:, k] >= values_NK[:, -1]).any()
    return lax.cond(tied, lambda: of_clusters(every_NC), lambda: (values_NK, ids_NK))


def beam(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int, width: int) -> tuple[Array, Array]:
    """Values and ids (N, K) of the k likeliest words of each row's `width` likeliest clusters."""
    _, chosen_NW = top_k(log_cluster_NC, min(width, log_cluster_NC.shape[1]))
    return best_by_id(*words.joint(hidden_ND, log_cluster_NC, chosen_NW), k)


def sample(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, uniforms_N2: Array) -> Array:
    """(N,) words: a cluster by the first number, one of its words by the second."""
    cluster_N = draw(jnp.exp(log_cluster_NC), uniforms_N2[:, 0])
    in_cluster_NS = words.in_cluster(hidden_ND, jnp.arange(len(hidden_ND)), cluster_N)
    return words.word_CS[cluster_N, draw(jnp.exp(in_cluster_NS), uniforms_N2[:, 1])]
