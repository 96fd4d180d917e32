"""Exact top-k, beam and sample of a two-level layer, without scoring the whole vocabulary.

No word of a cluster is likelier than the cluster. The likeliest clusters of each row give a k-th best word, and only
clusters that are as likely as that word can hold one of the k best. A single row on a CPU expands its clusters one by
one, so that none is expanded in vain. Where most of the clusters are needed, as for near-uniform distributions, all
words are scored, and the k best are searched in the k clusters with the highest best words.

`search` first plans how the rows are searched and then does so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from vocabench.impls.cpp import CPP
from vocabench.impls.forms import Form
from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.ops.tensors import (
    Tensor,
    at_least_float32,
    best_by_id,
    draw,
    on_gpu,
    product,
    traced,
)
from vocabench.impls.on_tensorflow.two_level import cluster_softmax

_FIRST_CLUSTERS = 8  # of each row, expanded before bounds are compared
_NEXT = 4  # times as many are expanded next where more than that are needed: the k-th best so far is far too low
_NEXT_SHARE = 0.4  # most of a row's clusters that are expanded next
# Shares of all (row, cluster) pairs. If more pairs than the first are about as likely as the likeliest of their row, or
# more than the second are still needed after the first clusters, one product for all is cheaper than one for each pair.
_FLAT_SHARE, _OPEN_SHARE = 0.15, 0.3
# Most multiplications for which all words are scored by one product instead of a loop over the clusters. A loop gains
# less with small clusters, so there are two limits: the second is for clusters with at least `_LARGE` elements.
_FEW_PRODUCTS, _FEW_OF_LARGE, _LARGE = 3 * 2**28, 2**27, 3 * 2**15
# Most clusters of a single row that are expanded one by one: this number, or this share. Beyond it, all are scored.
_LEAST_IN_TURN, _IN_TURN_SHARE = 32, 0.4
_SIZES = 8  # programs for reading one cluster, each for another number of slots

Result = tuple[Tensor, Tensor, Tensor]  # values and ids (N, K), and the (N,) share of clusters expanded


class WordsByCluster(NamedTuple):
    """The lower level of a two-level layer.

    Attributes:
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: int32, the word in each slot, -1 where it is empty.
        form: Form of the products with the words, one of `cluster_softmax.forms`.
    """

    slab_CSD: Tensor
    bias_CS: Tensor | None
    word_CS: Tensor
    form: Form | None

    def in_cluster(self, hidden_ND: Tensor, row_P: Tensor, cluster_P: Tensor) -> Tensor:
        """Return (P, S) log P(w | c, h) for pairs of a row and a cluster; hugely negative in an empty slot."""
        words = self[:3]
        if self.form == CPP:
            return cluster_softmax.log_by_kernels(hidden_ND, *words, row_P, cluster_P)
        if on_gpu():
            return tf.nn.log_softmax(cluster_softmax.pair_scores(hidden_ND, *words, row_P, cluster_P))
        order_P = tf.argsort(cluster_P, stable=True)
        cluster_U, _, count_U = tf.unique_with_counts(tf.gather(cluster_P, order_P))
        end_U = tf.cumsum(count_U)
        hidden_PD = tf.gather(hidden_ND, tf.gather(row_P, order_P))
        sorted_PS = cluster_softmax.log_in_runs(hidden_PD, *words, cluster_U, end_U - count_U, end_U)
        return tf.gather(sorted_PS, tf.math.invert_permutation(order_P))

    def scores_of_one(self, hidden_1D: Tensor, cluster: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (1, S) scores of a cluster's words for a single row, and the words; -inf in an empty slot.

        Reading the words takes most of the time, and empty slots come last. Most empty slots are therefore not read, in
        steps that keep the number of programs small.
        """
        width, dim = self.slab_CSD.shape[1:]
        word_1S = tf.slice(self.word_CS, [cluster, 0], [1, width])
        occupied = tf.math.count_nonzero(word_1S >= 0, dtype=tf.int32)
        step = -(-width // _SIZES)

        def scores_of_first(slots: int) -> Tensor:
            words_XD = tf.slice(self.slab_CSD, [cluster, 0, 0], [1, slots, dim])[0]
            return tf.pad(at_least_float32(product(hidden_1D, words_XD)), [[0, 0], [0, width - slots]])

        programs = [partial(scores_of_first, min(slots, width)) for slots in range(step, width + step, step)]
        scores_1S = tf.switch_case((occupied - 1) // step, programs)
        if self.bias_CS is not None:
            scores_1S += tf.cast(tf.slice(self.bias_CS, [cluster, 0], [1, width]), scores_1S.dtype)
        return tf.where(word_1S < 0, -tf.cast(math.inf, scores_1S.dtype), scores_1S), word_1S[0]

    def in_all(self, hidden_ND: Tensor) -> Scored:
        """Return log P(w | c, h) of all words."""
        clusters, width = self.word_CS.shape

        def at_once() -> Scored:
            in_cluster_NCS = tf.nn.log_softmax(cluster_softmax.all_scores(hidden_ND, *self[:3]))
            start_C = tf.range(clusters, dtype=tf.int64) * width
            stride_C = tf.fill([clusters], tf.constant(clusters * width, tf.int64))
            return Scored(tf.reshape(in_cluster_NCS, [-1]), start_C, stride_C, tf.reduce_max(in_cluster_NCS, axis=2))

        if on_gpu():
            return at_once()
        multiplications = tf.cast(tf.size(hidden_ND), tf.float32) * clusters * width
        few = _FEW_OF_LARGE if self.slab_CSD.shape[2] * width >= _LARGE else _FEW_PRODUCTS
        by_loop = partial(cluster_softmax.log_of_all, hidden_ND, *self[:3])
        return Scored(*tf.cond(multiplications > few, lambda: Scored(*by_loop()), at_once))


class Scored(NamedTuple):
    """log P(w | c, h) of all words of some rows.

    Attributes:
        in_cluster_F: The value of row r and the word in slot s of cluster c is at `start_C[c] + r * stride_C[c] + s`.
        start_C: First place of each cluster.
        stride_C: Places from one row to the next, in each cluster.
        highest_NC: The highest value of each cluster.
    """

    in_cluster_F: Tensor
    start_C: Tensor
    stride_C: Tensor
    highest_NC: Tensor


class _Way(Enum):
    """The ways to search a batch of rows."""

    KERNEL = auto()  # by the C++ kernel
    ONE_BY_ONE = auto()  # the clusters of a single row one by one, the likeliest first
    ROUNDS = auto()  # the likeliest clusters of all rows together, in rounds


class _Plan(NamedTuple):
    """How a batch of rows is searched.

    Attributes:
        way: The way.
        rounds: Number of clusters that each round expands for each row, and the largest share of all (row, cluster)
            pairs that may still be needed after it. If more are needed, the next round follows, and after the last
            round all words are scored.
        flat: Whether the distributions over clusters are so flat that all words are scored at once.
    """

    way: _Way
    rounds: tuple[tuple[int, float], ...] = ()
    flat: Tensor = False


def _planned(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int) -> _Plan:
    clusters, width = words.word_CS.shape
    if words.form == CPP:
        return _Plan(_Way.KERNEL)
    first = min(clusters, max(_FIRST_CLUSTERS, -(-k // width)))
    # If more than `first` words are requested, at least one cluster contributes two, so that the k-th is at most half
    # as likely as the likeliest cluster. Where many clusters reach that half, the first few cannot settle the row.
    half_N1 = tf.reduce_max(log_cluster_NC, axis=1, keepdims=True) - math.log(2.0)
    reaching = tf.math.count_nonzero(log_cluster_NC >= half_N1, dtype=tf.int32)
    flat = _exceeds(reaching, _FLAT_SHARE, log_cluster_NC) & (k > first)
    if hidden_ND.shape[0] == 1 and first == min(clusters, _FIRST_CLUSTERS) and not on_gpu():
        return _Plan(_Way.ONE_BY_ONE, flat=flat)
    following = _NEXT * first
    if following >= _NEXT_SHARE * clusters:
        return _Plan(_Way.ROUNDS, ((first, _OPEN_SHARE),), flat)
    rounds = (first, min(_OPEN_SHARE, following / clusters)), (following, _OPEN_SHARE)
    return _Plan(_Way.ROUNDS, rounds, flat)


def _exceeds(pairs: Tensor, share: float, log_cluster_NC: Tensor) -> Tensor:
    """Return whether there are more `pairs` than this share of all pairs of a row and a cluster."""
    return tf.cast(pairs, tf.float32) > share * tf.cast(tf.size(log_cluster_NC), tf.float32)


def search(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int) -> Result:
    """Return values and ids (N, K) of the k likeliest words, and the (N,) share of clusters expanded.

    Args:
        hidden_ND: Factors of the products with the word vectors.
        log_cluster_NC: log P(c | h).
        words: The words of each cluster; no cluster is empty.
        k: From 1 to V.
    """
    plan = _planned(hidden_ND, log_cluster_NC, words, k)
    if plan.way == _Way.KERNEL:
        return cpp_kernels.likeliest(tf.cast(hidden_ND, words.slab_CSD.dtype), log_cluster_NC, *words[:3], k)
    search_by_bounds = _search_one_by_one if plan.way == _Way.ONE_BY_ONE else _search_in_rounds
    settled, result = search_by_bounds(hidden_ND, log_cluster_NC, words, k, plan)

    def whole() -> Result:
        return *_best_of_whole(hidden_ND, log_cluster_NC, words, k), tf.ones(tf.shape(log_cluster_NC)[:1])

    return tf.cond(settled, result, whole)


def _search_one_by_one(
    hidden_1D: Tensor, log_cluster_1C: Tensor, words: WordsByCluster, k: int, plan: _Plan
) -> tuple[Tensor, Callable[[], Result]]:
    """Return whether expanding clusters one by one settled the row, and a function that returns the result."""
    expanded, settled, candidates = _expanded_one_by_one(hidden_1D, log_cluster_1C, words, k, plan.flat)
    clusters = words.word_CS.shape[0]
    return settled, lambda: (*best_by_id(*candidates, k), tf.cast(expanded, tf.float32)[None] / clusters)


@traced(jit_compile=True)  # TensorFlow's own kernels, a dozen for each cluster, take a fifth longer
def _expanded_one_by_one(
    hidden_1D: Tensor, log_cluster_1C: Tensor, words: WordsByCluster, k: int, flat: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Expand the clusters of one row, the likeliest first, until the next is less likely than the k-th best word.

    None is expanded if the row is `flat`. The first few clusters must hold k words. After some clusters, their k-th
    best word shows how many clusters may still be needed; if these are too many, the rest is not expanded.

    Returns:
        The number of clusters expanded, whether no other cluster can hold one of the k best words, and the best words
        of each expanded cluster, values and ids (1, X).
    """
    (clusters, width), dtype = words.word_CS.shape, log_cluster_1C.dtype
    best, most = min(k, width), min(clusters, max(_LEAST_IN_TURN, int(_IN_TURN_SHARE * clusters)))
    falling_1M, order_1M = tf.math.top_k(log_cluster_1C, min(most + 1, clusters))
    none = tf.constant(-math.inf, dtype)
    falling_M = tf.concat([falling_1M[0], none[None]], axis=0)

    def continues(number: Tensor, best_K: Tensor, *_: Tensor) -> Tensor:
        lowest = best_K[-1]
        promising = (number < _NEXT * _FIRST_CLUSTERS) | (falling_M[most] < lowest)
        return ~flat & promising & (number < most) & (falling_M[number] >= lowest)

    def expand(number: Tensor, best_K: Tensor, values_MB: Tensor, ids_MB: Tensor) -> tuple[Tensor, ...]:
        scores_1S, word_S = words.scores_of_one(hidden_1D, order_1M[0, number])
        best_1B, slot_1B = tf.math.top_k(tf.nn.log_softmax(scores_1S) + falling_M[number], best)
        values_MB = tf.tensor_scatter_nd_update(values_MB, [[number]], best_1B)
        ids_MB = tf.tensor_scatter_nd_update(ids_MB, [[number]], tf.gather(word_S, slot_1B))
        return number + 1, tf.math.top_k(tf.concat([best_K, best_1B[0]], axis=0), k)[0], values_MB, ids_MB

    start = tf.constant(0), tf.fill([k], none), tf.fill([most, best], none), tf.fill([most, best], -1)
    number, best_K, values_MB, ids_MB = tf.while_loop(continues, expand, start)
    settled = (falling_M[number] < best_K[-1]) | (number == clusters)
    return number, settled, (tf.reshape(values_MB, [1, -1]), tf.reshape(ids_MB, [1, -1]))


def _search_in_rounds(
    hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, plan: _Plan
) -> tuple[Tensor, Callable[[], Result]]:
    """Return whether one of the rounds settled the rows, and a function that returns its result."""
    *result, settled = *_blank_result(log_cluster_NC, k), tf.constant(False)
    for first, most in plan.rounds:
        *result, settled = tf.cond(
            settled | plan.flat,
            partial(lambda *unchanged: unchanged, *result, settled),
            partial(_search_by_bounds, hidden_ND, log_cluster_NC, words, k, first, most),
        )
    return settled, lambda: tuple(result)


def _blank_result(log_cluster_NC: Tensor, k: int) -> Result:
    """Return arrays of the shapes and dtypes of a result, for rows that were not settled."""
    rows = tf.shape(log_cluster_NC)[0]
    return tf.zeros([rows, k], log_cluster_NC.dtype), tf.zeros([rows, k], tf.int32), tf.zeros([rows])


def _search_by_bounds(
    hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, first: int, most: float
) -> tuple[Tensor, ...]:
    """Expand the `first` clusters of each row, and then the clusters that reach the k-th best word of these.

    Returns:
        A result, and whether it is valid. It is not if more than the share `most` of all pairs of a row and a cluster
        are needed: these are not expanded.
    """
    rows, (clusters, width) = tf.shape(log_cluster_NC)[0], words.word_CS.shape
    best = min(k, width)  # words of one cluster that can be among the k best

    def expand(row_P: Tensor, cluster_P: Tensor) -> tuple[Tensor, Tensor]:
        """Return values and ids (P, B) of the best words of pairs, ties in order of their slots."""
        in_cluster_PB, slot_PB = tf.math.top_k(words.in_cluster(hidden_ND, row_P, cluster_P), best)
        word_PB = tf.gather(tf.reshape(words.word_CS, [-1]), cluster_P[:, None] * width + slot_PB)
        joint_PB = in_cluster_PB + tf.gather_nd(log_cluster_NC, tf.stack([row_P, cluster_P], axis=1))[:, None]
        return tf.where(word_PB < 0, -tf.cast(math.inf, joint_PB.dtype), joint_PB), word_PB

    chosen_NM = tf.math.top_k(log_cluster_NC, first)[1]
    values, ids = expand(tf.repeat(tf.range(rows), first), tf.reshape(chosen_NM, [-1]))
    values_NX, ids_NX = (tf.reshape(array, [rows, first * best]) for array in (values, ids))
    lowest_N1 = tf.math.top_k(values_NX, k)[0][:, -1:]

    # At equality a word of lower id may still come: only clusters strictly below the k-th best are left out.
    expanded_NC = tf.reduce_any(tf.one_hot(chosen_NM, clusters, True, False, dtype=tf.bool), axis=1)
    needed_NC = (log_cluster_NC >= lowest_N1) & ~expanded_NC
    count_N = tf.math.count_nonzero(needed_NC, axis=1, dtype=tf.int32)

    def with_needed() -> Result:
        row_P, cluster_P = tf.unstack(tf.cast(tf.where(needed_NC), tf.int32), axis=1)
        values_PB, ids_PB = expand(row_P, cluster_P)
        rank_P = tf.range(tf.size(row_P)) - tf.gather(tf.cumsum(count_N, exclusive=True), row_P)
        most_needed = tf.maximum(tf.reduce_max(count_N), 0)  # of no rows, the maximum is negative
        place_P2, shape = tf.stack([row_P, rank_P], 1), [rows, most_needed, best]
        none = -tf.cast(math.inf, values_NX.dtype)
        more_values = tf.tensor_scatter_nd_update(tf.fill(shape, none), place_P2, values_PB)
        more_ids = tf.tensor_scatter_nd_update(tf.fill(shape, -1), place_P2, ids_PB)
        by_row = [rows, shape[1] * best]
        all_values = tf.concat([values_NX, tf.reshape(more_values, by_row)], 1)
        all_ids = tf.concat([ids_NX, tf.reshape(more_ids, by_row)], 1)
        return *best_by_id(all_values, all_ids, k), tf.cast(count_N + first, tf.float32) / clusters

    settled = ~_exceeds(tf.reduce_sum(count_N), most, log_cluster_NC)
    return *tf.cond(settled, with_needed, lambda: _blank_result(log_cluster_NC, k)), settled


def _best_of_whole(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor]:
    """Return values and ids (N, K), with every cluster scored."""
    clusters, width = words.word_CS.shape
    scored = words.in_all(hidden_ND)
    # k words are in at most k clusters, those with the k highest best words. One more shows whether a tie was left out.
    wide = min(k + 1, clusters)
    bests_NM, chosen_NM = tf.math.top_k(log_cluster_NC + scored.highest_NC, wide)
    last = tf.size(scored.in_cluster_F, out_type=tf.int64) - 1

    def best_of_chosen(row_R: Tensor, chosen_RM: Tensor) -> tuple[Tensor, Tensor]:
        start_RM = tf.gather(scored.start_C, chosen_RM) + row_R[:, None] * tf.gather(scored.stride_C, chosen_RM)
        place_RMS = start_RM[:, :, None] + tf.range(width, dtype=tf.int64)
        joint_RMS = tf.gather(scored.in_cluster_F, tf.minimum(place_RMS, last))
        joint_RMS += tf.gather(tf.gather(log_cluster_NC, row_R), chosen_RM, batch_dims=1)[:, :, None]
        word_RMS = tf.gather(words.word_CS, chosen_RM)
        # The values read for empty slots belong to other words.
        joint_RMS = tf.where(word_RMS < 0, -tf.cast(math.inf, joint_RMS.dtype), joint_RMS)
        by_row = [-1, chosen_RM.shape[1] * width]
        return best_by_id(tf.reshape(joint_RMS, by_row), tf.reshape(word_RMS, by_row), k)

    row_N = tf.range(tf.shape(log_cluster_NC, out_type=tf.int64)[0])
    values_NK, ids_NK = best_of_chosen(row_N, chosen_NM[:, : min(k, clusters)])
    if wide <= k:
        return values_NK, ids_NK
    tied_N = bests_NM[:, k] >= values_NK[:, -1]

    def with_tied() -> tuple[Tensor, Tensor]:
        tied_R1 = tf.where(tied_N)
        chosen_RC = tf.broadcast_to(tf.range(clusters), [tf.shape(tied_R1)[0], clusters])
        result = best_of_chosen(tied_R1[:, 0], tf.ensure_shape(chosen_RC, [None, clusters]))
        values, ids = (
            tf.tensor_scatter_nd_update(old, tied_R1, new) for old, new in zip((values_NK, ids_NK), result, strict=True)
        )
        return values, ids

    return tf.cond(tf.reduce_any(tied_N), with_tied, lambda: (values_NK, ids_NK))


def beam(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, width: int) -> tuple[Tensor, Tensor]:
    """Return values and ids (N, K) of the k likeliest words of each row's `width` likeliest clusters."""
    (clusters, slots), rows = words.word_CS.shape, tf.shape(log_cluster_NC)[0]
    followed = min(width, clusters)
    log_cluster_NW, chosen_NW = tf.math.top_k(log_cluster_NC, followed)
    in_cluster_PS = words.in_cluster(hidden_ND, tf.repeat(tf.range(rows), followed), tf.reshape(chosen_NW, [-1]))
    joint_NWS = tf.reshape(in_cluster_PS, [rows, followed, slots]) + log_cluster_NW[:, :, None]
    by_row = [rows, followed * slots]
    return best_by_id(tf.reshape(joint_NWS, by_row), tf.reshape(tf.gather(words.word_CS, chosen_NW), by_row), k)


def sample(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, uniforms_N2: Tensor) -> Tensor:
    """Return (N,) words: the first uniform number draws a cluster, the second one of its words."""
    cluster_N = draw(tf.exp(log_cluster_NC), uniforms_N2[:, 0])
    in_cluster_NS = words.in_cluster(hidden_ND, tf.range(tf.shape(cluster_N)[0]), cluster_N)
    slot_N = draw(tf.exp(in_cluster_NS), uniforms_N2[:, 1])
    return tf.gather_nd(words.word_CS, tf.stack([cluster_N, slot_N], axis=1))
