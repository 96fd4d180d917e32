"""Decoding of a two-level layer without the whole vocabulary: exact top-k, beam, sample.

For top-k, no word of a cluster is likelier than the cluster. The likeliest clusters of each row give a k-th best word;
then every cluster as likely as that is expanded, and no other can hold one of the k best; on a CPU those of a single
row one by one, so that none is in vain. Where these are most of the clusters, as of flat distributions, all words are
scored, and the k best are looked for in the k clusters of the best bests. On a CPU the clusters wanted are taken in
turn as they lie, on a GPU many at a time.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from vocabench.impls.cpp import CPP
from vocabench.impls.forms import Form
from vocabench.impls.on_tensorflow.layer import Tensor, at_least_float32, best_by_id, draw, on_gpu, product, traced
from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.two_level import cluster_softmax

_FIRST_CLUSTERS = 8  # of each row, expanded to find what the others must reach
_NEXT = 4  # times as many are tried where more than that reach it: the k-th best of the first was far too low
_NEXT_SHARE = 0.4  # of a row's clusters, up to which so many are tried
# Of all (row, cluster) pairs: where so many are about as likely as the likeliest, or are left open by the first
# clusters, one product for all is cheaper than one for each pair.
_FLAT_SHARE, _OPEN_SHARE = 0.15, 0.3
# Products of a number of a row and one of a word: so few are made at once, and not by a loop over the clusters, whose
# turns are worth less where clusters are small: the second is for those of so many numbers.
_FEW_PRODUCTS, _FEW_OF_LARGE, _LARGE = 3 * 2**28, 2**27, 3 * 2**15
# Of the clusters of a single row, expanded one by one: so many, or this share; if more, all are scored.
_LEAST_IN_TURN, _IN_TURN_SHARE = 32, 0.4
_SIZES = 8  # how many there are of what is read of a single cluster

Found = tuple[Tensor, Tensor, Tensor]  # values and ids (N, K), and (N,) the share of clusters expanded


class WordsByCluster(NamedTuple):
    """The lower level of a two-level layer.

    Attributes:
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: int32, the word in each slot, -1 where it is empty.
        form: Of products with the words, as in `cluster_softmax.forms`.
    """

    slab_CSD: Tensor
    bias_CS: Tensor | None
    word_CS: Tensor
    form: Form | None

    def in_cluster(self, hidden_ND: Tensor, row_P: Tensor, cluster_P: Tensor) -> Tensor:
        """(P, S) log P(w | c, h) for pairs of a row and a cluster; hugely negative in an empty slot."""
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
        """(1, S) of a single row the scores of a cluster's words, and the words; -inf in an empty slot.

        Reading is what takes time, and empty slots come last: so many of them are not read as leaves few programs.
        """
        width, dim = self.slab_CSD.shape[1:]
        word_1S = tf.slice(self.word_CS, [cluster, 0], [1, width])
        held = tf.math.count_nonzero(word_1S >= 0, dtype=tf.int32)
        step = -(-width // _SIZES)

        def of_first(slots: int) -> Tensor:
            words_XD = tf.slice(self.slab_CSD, [cluster, 0, 0], [1, slots, dim])[0]
            return tf.pad(at_least_float32(product(hidden_1D, words_XD)), [[0, 0], [0, width - slots]])

        sizes = [partial(of_first, min(last, width)) for last in range(step, width + step, step)]
        scores_1S = tf.switch_case((held - 1) // step, sizes)
        if self.bias_CS is not None:
            scores_1S += tf.cast(tf.slice(self.bias_CS, [cluster, 0], [1, width]), scores_1S.dtype)
        return tf.where(word_1S < 0, -tf.cast(math.inf, scores_1S.dtype), scores_1S), word_1S[0]

    def in_all(self, hidden_ND: Tensor) -> Scored:
        """log P(w | c, h) of all words."""
        clusters, width = self.word_CS.shape

        def at_once() -> Scored:
            in_cluster_NCS = tf.nn.log_softmax(cluster_softmax.all_scores(hidden_ND, *self[:3]))
            every_C = tf.range(clusters, dtype=tf.int64)
            of_row_C = tf.fill([clusters], tf.constant(clusters * width, tf.int64))
            highest_NC = tf.reduce_max(in_cluster_NCS, axis=2)
            return Scored(tf.reshape(in_cluster_NCS, [-1]), every_C * width, of_row_C, highest_NC)

        if on_gpu():
            return at_once()
        products = tf.cast(tf.size(hidden_ND), tf.float32) * clusters * width
        few = _FEW_OF_LARGE if self.slab_CSD.shape[2] * width >= _LARGE else _FEW_PRODUCTS
        return Scored(
            *tf.cond(products > few, lambda: Scored(*cluster_softmax.log_of_all(hidden_ND, *self[:3])), at_once)
        )


class Scored(NamedTuple):
    """log P(w | c, h) of all words of some rows.

    Attributes:
        in_cluster_F: That of row r and the word in slot s of cluster c is at `start_C[c] + r * of_row_C[c] + s`.
        highest_NC: The highest of each cluster.
    """

    in_cluster_F: Tensor
    start_C: Tensor
    of_row_C: Tensor
    highest_NC: Tensor


def search(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int) -> Found:
    """Values and ids (N, K) of the k likeliest words, and (N,) the share of clusters expanded.

    Args:
        hidden_ND: What the word vectors are multiplied with.
        log_cluster_NC: log P(c | h).
        words: The words of each cluster, none of which is empty.
        k: From 1 to V.
    """
    clusters, width = words.word_CS.shape
    if words.form == CPP:
        return cpp_kernels.likeliest(tf.cast(hidden_ND, words.slab_CSD.dtype), log_cluster_NC, *words[:3], k)
    first = min(clusters, max(_FIRST_CLUSTERS, -(-k // width)))
    following = _NEXT * first
    next_pays = following < _NEXT_SHARE * clusters

    def by_bounds(first: int, most: float) -> tuple[Tensor, ...]:
        return _best_by_bounds(hidden_ND, log_cluster_NC, words, k, first, most)

    def not_tried() -> tuple[Tensor, ...]:
        return *_nothing(log_cluster_NC, k), tf.constant(False)

    def whole() -> Found:
        return *_best_of_all(hidden_ND, log_cluster_NC, words, k), tf.ones(tf.shape(log_cluster_NC)[:1])

    # With more than `first` words asked for, one cluster at least gives two, so the k-th is at most half the likeliest
    # cluster: where many clusters reach that half, the first few cannot settle the row.
    half_N1 = tf.reduce_max(log_cluster_NC, axis=1, keepdims=True) - math.log(2.0)
    reaching = tf.math.count_nonzero(log_cluster_NC >= half_N1, dtype=tf.int32)
    flat = _exceeds(reaching, _FLAT_SHARE, log_cluster_NC) & (k > first)
    if hidden_ND.shape[0] == 1 and first == min(clusters, _FIRST_CLUSTERS) and not on_gpu():
        number, settled, candidates = _expanded_in_turn(hidden_ND, log_cluster_NC, words, k, flat)

        def best() -> Found:
            return *best_by_id(*candidates, k), tf.cast(number, tf.float32)[None] / clusters

        return tf.cond(settled, best, whole)
    most = min(_OPEN_SHARE, following / clusters) if next_pays else _OPEN_SHARE
    *found, settled = tf.cond(flat, not_tried, lambda: by_bounds(first, most))
    if next_pays:
        again, kept = ~settled & ~flat, (*found, settled)
        *found, settled = tf.cond(again, lambda: by_bounds(following, _OPEN_SHARE), lambda: kept)
    return tf.cond(settled, lambda: tuple(found), whole)  # one place for it, or it would be traced twice


@traced(jit_compile=True)  # TensorFlow's own kernels, a dozen a cluster, take a fifth longer
def _expanded_in_turn(
    hidden_1D: Tensor, log_cluster_1C: Tensor, words: WordsByCluster, k: int, flat: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """The clusters of one row expanded one by one, the likeliest first, until the next one is below the k-th best word;
    none if `flat`. The first few must hold k words.

    The k-th best of some clusters tells how many can be in question yet: where these are too many after so many that
    others would hardly raise it, it is given up.

    Returns:
        How many clusters were expanded, whether no other can hold one of the k best, and the best words of each, values
        and ids (1, X).
    """
    (clusters, width), kind = words.word_CS.shape, log_cluster_1C.dtype
    each, most = min(k, width), min(clusters, max(_LEAST_IN_TURN, int(_IN_TURN_SHARE * clusters)))
    falling_1M, order_1M = tf.math.top_k(log_cluster_1C, min(most + 1, clusters))
    none = tf.constant(-math.inf, kind)
    falling_M = tf.concat([falling_1M[0], none[None]], axis=0)

    def reaches(number: Tensor, best_K: Tensor, *_: Tensor) -> Tensor:
        lowest = best_K[-1]
        hopeful = (number < _NEXT * _FIRST_CLUSTERS) | (falling_M[most] < lowest)
        return ~flat & hopeful & (number < most) & (falling_M[number] >= lowest)

    def visit(number: Tensor, best_K: Tensor, values_ME: Tensor, ids_ME: Tensor) -> tuple[Tensor, ...]:
        scores_1S, word_S = words.scores_of_one(hidden_1D, order_1M[0, number])
        best_1E, slot_1E = tf.math.top_k(tf.nn.log_softmax(scores_1S) + falling_M[number], each)
        values_ME = tf.tensor_scatter_nd_update(values_ME, [[number]], best_1E)
        ids_ME = tf.tensor_scatter_nd_update(ids_ME, [[number]], tf.gather(word_S, slot_1E))
        return number + 1, tf.math.top_k(tf.concat([best_K, best_1E[0]], axis=0), k)[0], values_ME, ids_ME

    start = tf.constant(0), tf.fill([k], none), tf.fill([most, each], none), tf.fill([most, each], -1)
    number, best_K, values_ME, ids_ME = tf.while_loop(reaches, visit, start)
    settled = (falling_M[number] < best_K[-1]) | (number == clusters)
    return number, settled, (tf.reshape(values_ME, [1, -1]), tf.reshape(ids_ME, [1, -1]))


def _nothing(log_cluster_NC: Tensor, k: int) -> Found:
    """In the place of what `search` finds, where it was not looked for."""
    rows = tf.shape(log_cluster_NC)[0]
    return tf.zeros([rows, k], log_cluster_NC.dtype), tf.zeros([rows, k], tf.int32), tf.zeros([rows])


def _exceeds(pairs: Tensor, share: float, log_cluster_NC: Tensor) -> Tensor:
    return tf.cast(pairs, tf.float32) > share * tf.cast(tf.size(log_cluster_NC), tf.float32)


def _best_by_bounds(
    hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, first: int, most: float
) -> tuple[Tensor, ...]:
    """The best words of the first clusters of each row, then of those that reach the k-th best of these, as `search`
    gives them; and whether these were so few, `most` of all pairs of a row and a cluster, that they were expanded."""
    rows, (clusters, width) = tf.shape(log_cluster_NC)[0], words.word_CS.shape
    each = min(k, width)  # the most that a cluster can hold of the k best

    def expand(row_P: Tensor, cluster_P: Tensor) -> tuple[Tensor, Tensor]:
        """(P, each) the best words of pairs, equals in order of their slots."""
        best, slot = tf.math.top_k(words.in_cluster(hidden_ND, row_P, cluster_P), each)
        word = tf.gather(tf.reshape(words.word_CS, [-1]), cluster_P[:, None] * width + slot)
        joint = best + tf.gather_nd(log_cluster_NC, tf.stack([row_P, cluster_P], axis=1))[:, None]
        return tf.where(word < 0, -tf.cast(math.inf, best.dtype), joint), word

    chosen_NM = tf.math.top_k(log_cluster_NC, first)[1]
    values, ids = expand(tf.repeat(tf.range(rows), first), tf.reshape(chosen_NM, [-1]))
    values, ids = (tf.reshape(array, [rows, first * each]) for array in (values, ids))
    lowest_N1 = tf.math.top_k(values, k)[0][:, -1:]

    # At equality a word of lower id may still come: only a cluster strictly below is left out.
    expanded_NC = tf.reduce_any(tf.one_hot(chosen_NM, clusters, True, False, dtype=tf.bool), axis=1)
    open_NC = (log_cluster_NC >= lowest_N1) & ~expanded_NC
    count_N = tf.math.count_nonzero(open_NC, axis=1, dtype=tf.int32)

    def with_open() -> Found:
        row_P, cluster_P = tf.unstack(tf.cast(tf.where(open_NC), tf.int32), axis=1)
        more_values, more_ids = expand(row_P, cluster_P)
        rank_P = tf.range(tf.size(row_P)) - tf.gather(tf.cumsum(count_N, exclusive=True), row_P)
        place_P2, shape = tf.stack([row_P, rank_P], 1), [rows, tf.reduce_max(count_N), each]
        none = -tf.cast(math.inf, values.dtype)
        more_values = tf.tensor_scatter_nd_update(tf.fill(shape, none), place_P2, more_values)
        more_ids = tf.tensor_scatter_nd_update(tf.fill(shape, -1), place_P2, more_ids)
        flat = [rows, shape[1] * each]
        every = tf.concat([values, tf.reshape(more_values, flat)], 1), tf.concat([ids, tf.reshape(more_ids, flat)], 1)
        return *best_by_id(*every, k), tf.cast(count_N + first, tf.float32) / clusters

    settled = ~_exceeds(tf.reduce_sum(count_N), most, log_cluster_NC)
    return *tf.cond(settled, with_open, lambda: _nothing(log_cluster_NC, k)), settled


def _best_of_all(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor]:
    clusters, width = words.word_CS.shape
    scored = words.in_all(hidden_ND)
    # k words lie in at most k clusters, those of the k highest bests; one more tells whether a tie was left out.
    wide = min(k + 1, clusters)
    bests_NM, chosen_NM = tf.math.top_k(log_cluster_NC + scored.highest_NC, wide)
    last = tf.size(scored.in_cluster_F, out_type=tf.int64) - 1

    def of_clusters(row_R: Tensor, chosen_RM: Tensor) -> tuple[Tensor, Tensor]:
        start_RM = tf.gather(scored.start_C, chosen_RM) + row_R[:, None] * tf.gather(scored.of_row_C, chosen_RM)
        place_RMS = start_RM[:, :, None] + tf.range(width, dtype=tf.int64)
        joint_RMS = tf.gather(scored.in_cluster_F, tf.minimum(place_RMS, last))
        joint_RMS += tf.gather(tf.gather(log_cluster_NC, row_R), chosen_RM, batch_dims=1)[:, :, None]
        word_RMS = tf.gather(words.word_CS, chosen_RM)
        # What is read for a cluster's empty slots is some other word's.
        joint_RMS = tf.where(word_RMS < 0, -tf.cast(math.inf, joint_RMS.dtype), joint_RMS)
        flat = [-1, chosen_RM.shape[1] * width]
        return best_by_id(tf.reshape(joint_RMS, flat), tf.reshape(word_RMS, flat), k)

    every_N = tf.range(tf.shape(log_cluster_NC, out_type=tf.int64)[0])
    values_NK, ids_NK = of_clusters(every_N, chosen_NM[:, : min(k, clusters)])
    if wide <= k:
        return values_NK, ids_NK
    tied_N = bests_NM[:, k] >= values_NK[:, -1]

    def with_tied() -> tuple[Tensor, Tensor]:
        tied_R1 = tf.where(tied_N)
        every_RC = tf.ensure_shape(
            tf.broadcast_to(tf.range(clusters), [tf.shape(tied_R1)[0], clusters]), [None, clusters]
        )
        settled = zip((values_NK, ids_NK), of_clusters(tied_R1[:, 0], every_RC), strict=True)
        values, ids = (tf.tensor_scatter_nd_update(old, tied_R1, new) for old, new in settled)
        return values, ids

    return tf.cond(tf.reduce_any(tied_N), with_tied, lambda: (values_NK, ids_NK))


def beam(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, width: int) -> tuple[Tensor, Tensor]:
    """Values and ids (N, K) of the k likeliest words of each row's `width` likeliest clusters."""
    (clusters, slots), rows = words.word_CS.shape, tf.shape(log_cluster_NC)[0]
    followed = min(width, clusters)
    log_cluster_NW, chosen_NW = tf.math.top_k(log_cluster_NC, followed)
    in_cluster_PS = words.in_cluster(hidden_ND, tf.repeat(tf.range(rows), followed), tf.reshape(chosen_NW, [-1]))
    joint_NWS = tf.reshape(in_cluster_PS, [rows, followed, slots]) + log_cluster_NW[:, :, None]
    flat = [rows, followed * slots]
    return best_by_id(tf.reshape(joint_NWS, flat), tf.reshape(tf.gather(words.word_CS, chosen_NW), flat), k)


def sample(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, uniforms_N2: Tensor) -> Tensor:
    """(N,) words: a cluster by the first number, one of its words by the second."""
    cluster_N = draw(tf.exp(log_cluster_NC), uniforms_N2[:, 0])
    in_cluster_NS = words.in_cluster(hidden_ND, tf.range(tf.shape(cluster_N)[0]), cluster_N)
    slot_N = draw(tf.exp(in_cluster_NS), uniforms_N2[:, 1])
    return tf.gather_nd(words.word_CS, tf.stack([cluster_N, slot_N], axis=1))
