"""Decoding of a two-level layer without the whole vocabulary: exact top-k, beam, sample.

For top-k, no word of a cluster is likelier than the cluster. The likeliest clusters of each row give a k-th best word;
then every cluster as likely as that is expanded, and no other can hold one of the k best; on a CPU those of a single
row one by one, so that none is in vain. Where these are most of the clusters, as of flat distributions, all words are
scored, and the k best are looked for in the k clusters of the best bests.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls.cpp import CPP
from vocabench.impls.forms import Form
from vocabench.impls.on_jax.layer import Array, draw, product, wide
from vocabench.impls.on_jax.ops import cpp_kernels
from vocabench.impls.on_jax.ops.topk import best_by_id, top_k
from vocabench.impls.on_jax.pallas.support import KERNELS
from vocabench.impls.on_jax.two_level import cluster_softmax

_FIRST_CLUSTERS = 8  # of each row, expanded to find what the others must reach
_NEXT = 4  # times as many are tried where too many reach that: the k-th best of the first was far too low
_NEXT_SHARE = 0.4  # of a row's clusters, up to which so many are tried
_WHOLE_SHARE = 0.15  # of all (row, cluster) pairs: above it one product for all is cheaper than gathered ones
_LEAST_ROOM = 32  # pairs: so few are cheaper than all words even where they are most of a small layer's
_FEW_NUMBERS = 2**23  # of a slab, which so small is read at once
_PIECE, _SLOTS = 16, 4096  # slots of a piece of a slab, and of those read at a time
_PAIRS = 512  # of a row and a cluster, expanded at a time beyond the first clusters
_SIZES = 8  # how many there are of what is read of a single cluster
# Scores of all rows: up to so many, a GPU makes them all in the time that the host takes for one decision.
_AT_ONCE_ON_GPU = 2**26
_IN_TURN_SHARE = 0.4  # of the clusters: of a single row's so many are expanded one by one, or scored at once if more

Found = tuple[Array, Array, Array]  # values and ids (N, K), and (N,) the share of clusters expanded


class WordsByCluster(NamedTuple):
    """The lower level of a two-level layer.

    Attributes:
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: The word in each slot, -1 where it is empty.
        form: Of products with the words, as in `cluster_softmax.forms`.
    """

    slab_CSD: Array
    bias_CS: Array | None
    word_CS: Array
    form: Form | None

    @property
    def added_CS(self) -> Array:
        """What a word's score gets on top, its bias or 0; -inf in an empty slot."""
        return cluster_softmax.added_scores(self.bias_CS, self.word_CS, wide(self.slab_CSD.dtype))

    def scores_of_one(self, hidden_1D: Array, cluster: Array) -> tuple[Array, Array]:
        """(1, S) of a single row the scores of a cluster's words, and the words; -inf in an empty slot.

        Reading is what takes time, and empty slots come last: so many of them are not read as leaves few programs.
        """
        word_S = self.word_CS[cluster]
        (width,), dim = word_S.shape, self.slab_CSD.shape[2]
        step, zero = -(-width // _SIZES), jnp.zeros_like(cluster)

        def of_first(slots: int) -> Array:
            (words_XD,) = lax.dynamic_slice(self.slab_CSD, (cluster, zero, zero), (1, slots, dim))
            return jnp.pad(product(hidden_1D, words_XD), ((0, 0), (0, width - slots)))

        sizes = [partial(of_first, min(last, width)) for last in range(step, width + step, step)]
        scores_1S = lax.switch(((word_S >= 0).sum() - 1) // step, sizes)
        if self.bias_CS is not None:
            scores_1S = scores_1S + self.bias_CS[cluster]
        return jnp.where(word_S < 0, -jnp.inf, scores_1S), word_S

    def in_cluster(self, hidden_ND: Array, row_P: Array, cluster_P: Array) -> Array:
        """(P, S) log P(w | c, h) of pairs of a row and a cluster; for a cluster beyond the last, of no meaning."""
        scores_PS = cluster_softmax.pair_scores(hidden_ND, *self[:3], row_P, cluster_P, self.form)
        return jax.nn.log_softmax(scores_PS, axis=1)

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
    (rows, clusters), width = log_cluster_NC.shape, words.word_CS.shape[1]
    if words.form == CPP:
        return cpp_kernels.likeliest(hidden_ND.astype(words.slab_CSD.dtype), log_cluster_NC, *words[:3], k)
    first = min(clusters, max(_FIRST_CLUSTERS, -(-k // width)))

    def by_bounds(first: int) -> tuple[Found, Array]:
        return _best_by_bounds(hidden_ND, log_cluster_NC, words, k, first)

    def not_tried() -> tuple[Found, Array]:
        nothing_NK, none_NK = jnp.zeros((rows, k), log_cluster_NC.dtype), jnp.zeros((rows, k), words.word_CS.dtype)
        return (nothing_NK, none_NK, jnp.zeros(rows, jnp.float32)), jnp.array(False)

    def whole() -> Found:
        return *_best_of_all(hidden_ND, log_cluster_NC, words, k), jnp.ones(rows, jnp.float32)

    # With more than `first` words asked for, one cluster at least gives two, so the k-th is at most half the likeliest
    # cluster: where many clusters reach that half, the first few cannot settle the row.
    reaching_NC = log_cluster_NC >= log_cluster_NC.max(axis=1, keepdims=True) - math.log(2.0)
    flat = (reaching_NC.mean() > _WHOLE_SHARE) & (k > first)

    def at_once() -> Found:
        found, settled = lax.cond(flat, not_tried, lambda: by_bounds(first))
        if _NEXT * first < _NEXT_SHARE * clusters:
            again = ~settled & ~flat
            found, settled = lax.cond(again, lambda: by_bounds(_NEXT * first), lambda: (found, settled))
        return lax.cond(settled, lambda: found, whole)  # one place for it, or it would be compiled twice

    def in_turn() -> Found:
        number, settled, candidates = _expanded_in_turn(hidden_ND, log_cluster_NC, words, k, flat)
        share_1 = (number / clusters).astype(jnp.float32)[None]
        return lax.cond(settled, lambda: (*best_by_id(*candidates, k), share_1), whole)

    # On a GPU the host would wait for each decision and each turn of a loop.
    on_gpu = whole if rows * clusters * width <= _AT_ONCE_ON_GPU else at_once
    on_cpu = in_turn if rows == 1 and first == min(clusters, _FIRST_CLUSTERS) else at_once
    return lax.platform_dependent(cpu=on_cpu, default=on_gpu)


def _expanded_in_turn(
    hidden_1D: Array, log_cluster_1C: Array, words: WordsByCluster, k: int, flat: Array
) -> tuple[Array, Array, tuple[Array, Array]]:
    """The clusters of one row expanded one by one, the likeliest first, until the next one is below the k-th best word;
    none if `flat`. The first few must hold k words.

    The k-th best of some clusters tells how many can be in question yet: where these are too many after so many that
    others would hardly raise it, it is given up.

    Returns:
        How many clusters were expanded, whether no other can hold one of the k best, and the best words of each, values
        and ids (1, X).
    """
    (clusters, width), kind = words.word_CS.shape, log_cluster_1C.dtype
    each, most = min(k, width), min(clusters, max(_LEAST_ROOM, int(_IN_TURN_SHARE * clusters)))
    (falling_M,), (order_M,) = top_k(log_cluster_1C, min(most + 1, clusters))
    falling_M = jnp.append(falling_M, -jnp.inf)

    def reaches(state: tuple[Array, ...]) -> Array:
        number, best_K, *_ = state
        lowest = best_K[-1]
        hopeful = (number < _NEXT * _FIRST_CLUSTERS) | (falling_M[most] < lowest)
        return ~flat & hopeful & (number < most) & (falling_M[number] >= lowest)

    def visit(state: tuple[Array, ...]) -> tuple[Array, ...]:
        number, best_K, values_ME, ids_ME = state
        scores_1S, word_S = words.scores_of_one(hidden_1D, order_M[number])
        best_1E, slot_1E = top_k(jax.nn.log_softmax(scores_1S) + falling_M[number], each)
        values_ME = lax.dynamic_update_slice_in_dim(values_ME, best_1E, number, 0)
        ids_ME = lax.dynamic_update_slice_in_dim(ids_ME, word_S[slot_1E], number, 0)
        return number + 1, top_k(jnp.append(best_K, best_1E), k)[0], values_ME, ids_ME

    blank_ME = jnp.full((most, each), -jnp.inf, kind), jnp.full((most, each), -1, words.word_CS.dtype)
    start = jnp.int32(0), jnp.full(k, -jnp.inf, kind), *blank_ME
    number, best_K, values_ME, ids_ME = lax.while_loop(reaches, visit, start)
    settled = (falling_M[number] < best_K[-1]) | (number == clusters)
    return number, settled, (values_ME.reshape(1, -1), ids_ME.reshape(1, -1))


def _best_by_bounds(
    hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int, first: int
) -> tuple[Found, Array]:
    """The best words of the first clusters of each row, then of those that reach the k-th best of these; and whether
    these were few enough to be expanded."""
    rows, clusters = log_cluster_NC.shape
    every_N1 = jnp.arange(rows)[:, None]
    _, chosen_NM = top_k(log_cluster_NC, first)
    values_NK, ids_NK = best_by_id(*words.joint(hidden_ND, log_cluster_NC, chosen_NM), k)
    # At equality a word of lower id may still come: only a cluster strictly below is left out.
    open_NC = (log_cluster_NC >= values_NK[:, -1:]).at[every_N1, chosen_NM].set(False)
    share_N = (first + open_NC.sum(axis=1)).astype(jnp.float32) / clusters
    room = min(open_NC.size, max(_LEAST_ROOM, int(_WHOLE_SHARE * open_NC.size)))

    def further() -> Found:
        return *_joined_by_open(values_NK, ids_NK, hidden_ND, log_cluster_NC, words, open_NC, room), share_N

    settled = open_NC.sum() <= room
    return lax.cond(settled, further, lambda: (values_NK, ids_NK, share_N)), settled


def _joined_by_open(
    values_NK: Array, ids_NK: Array, hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster,
    open_NC: Array, room: int,
) -> tuple[Array, Array]:  # fmt: skip
    """The best so far with the words of the open clusters, `room` of all rows at most."""
    (rows, clusters), k, each = open_NC.shape, values_NK.shape[1], min(values_NK.shape[1], words.word_CS.shape[1])
    at_once = min(_PAIRS, room)
    size = -(-room // at_once) * at_once
    cluster_P, row_P = jnp.nonzero(open_NC.T, size=size, fill_value=(clusters, rows))  # those of a cluster together

    def visit(number: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        values_NCE, ids_NCE = found
        row_B, cluster_B = (lax.dynamic_slice_in_dim(a, number * at_once, at_once) for a in (row_P, cluster_P))
        in_cluster_BS = words.in_cluster(hidden_ND, row_B, cluster_B)
        joint_BS = in_cluster_BS + log_cluster_NC.at[row_B, cluster_B].get(mode="fill", fill_value=-jnp.inf)[:, None]
        # The best of each pair go where the row's and the cluster's numbers point.
        best_BE, slot_BE = top_k(joint_BS, each)
        values_NCE = values_NCE.at[row_B, cluster_B].set(best_BE, mode="drop")
        return values_NCE, ids_NCE.at[row_B, cluster_B].set(words.word_CS[cluster_B[:, None], slot_BE], mode="drop")

    shape = (rows, clusters, each)
    blank = jnp.full(shape, -jnp.inf, values_NK.dtype), jnp.full(shape, -1, words.word_CS.dtype)
    found = lax.fori_loop(0, (open_NC.sum() + at_once - 1) // at_once, visit, blank)
    values, ids = (
        jnp.concatenate([old, new.reshape(rows, -1)], 1) for old, new in zip((values_NK, ids_NK), found, strict=True)
    )
    return best_by_id(values, ids, k)


def _best_of_all(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int) -> tuple[Array, Array]:
    (rows, clusters), width = log_cluster_NC.shape, words.word_CS.shape[1]
    scores_NF = _products(hidden_ND, words)
    if words.form == KERNELS:
        from vocabench.impls.on_jax.pallas import topk_kernels  # imports Pallas' way to Triton, which not every JAX has

        if topk_kernels.takes(clusters, width, k):
            return topk_kernels.best_of_clusters(scores_NF, words.bias_CS, log_cluster_NC, words.word_CS, k)
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


def _products(hidden_ND: Array, words: WordsByCluster) -> Array:
    """(N, C S) of all words; of no meaning in an empty slot."""
    (clusters, width), dim = words.word_CS.shape, words.slab_CSD.shape[2]

    def at_once(hidden_ND: Array) -> Array:
        return product(hidden_ND, words.slab_CSD.reshape(-1, dim))

    def by_pieces(hidden_1D: Array) -> Array:
        piece = math.gcd(width, _PIECE)
        together = min(_SLOTS, clusters * width) // piece
        pieces_MSD = words.slab_CSD.reshape(-1, piece, dim)
        holds_M = (words.word_CS >= 0).reshape(-1, piece).any(axis=1)
        count, size = len(holds_M), -(-len(holds_M) // together) * together
        (held_M,) = jnp.nonzero(holds_M, size=size, fill_value=count)

        def visit(number: Array, products_MS: Array) -> Array:
            held_B = lax.dynamic_slice_in_dim(held_M, number * together, together)
            products_1F = product(hidden_1D, pieces_MSD[held_B].reshape(-1, dim))
            return lax.dynamic_update_slice_in_dim(products_MS, products_1F.reshape(-1, piece), number * together, 0)

        blank_MS = jnp.zeros((size, piece), wide(words.slab_CSD.dtype))
        products_MS = lax.fori_loop(0, (holds_M.sum() + together - 1) // together, visit, blank_MS)
        return products_MS[jnp.maximum(jnp.cumsum(holds_M) - 1, 0)].reshape(1, -1)

    # Reading the words is all that one row takes, so that pieces of the slab without words are left out.
    if len(hidden_ND) > 1 or words.slab_CSD.size <= _FEW_NUMBERS:
        return at_once(hidden_ND)
    # On a GPU the host would wait for each turn of the loop.
    return lax.platform_dependent(hidden_ND, cpu=by_pieces, default=at_once)


def beam(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int, width: int) -> tuple[Array, Array]:
    """Values and ids (N, K) of the k likeliest words of each row's `width` likeliest clusters."""
    _, chosen_NW = top_k(log_cluster_NC, min(width, log_cluster_NC.shape[1]))
    return best_by_id(*words.joint(hidden_ND, log_cluster_NC, chosen_NW), k)


def sample(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, uniforms_N2: Array) -> Array:
    """(N,) words: a cluster by the first number, one of its words by the second."""
    cluster_N = draw(jnp.exp(log_cluster_NC), uniforms_N2[:, 0])
    in_cluster_NS = words.in_cluster(hidden_ND, jnp.arange(len(hidden_ND)), cluster_N)
    return words.word_CS[cluster_N, draw(jnp.exp(in_cluster_NS), uniforms_N2[:, 1])]
