"""Decoding of a two-level layer without the whole vocabulary: exact top-k, beam and sample.

No word is likelier than its cluster. Top-k therefore expands the likeliest clusters of each row, which gives a k-th
best word, and then every cluster that is at least as likely as that word: no other cluster can hold one of the k best.
On a CPU the clusters of a single row are expanded one by one, so that none is expanded in vain.

Where most clusters would be expanded, as for near-uniform distributions, all words are scored instead. The k best words
are then among the k clusters with the highest best words.

`search` first plans how the rows are searched, and then executes the plan.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls.cpp import CPP
from vocabench.impls.forms import Form
from vocabench.impls.on_jax.ops import cpp_kernels
from vocabench.impls.on_jax.ops.arrays import Array, draw, plus_bias, product, varying_as, wide
from vocabench.impls.on_jax.ops.topk import best_by_id, top_k
from vocabench.impls.on_jax.pallas.support import KERNELS
from vocabench.impls.on_jax.two_level import cluster_softmax

_FIRST_CLUSTERS = 8  # clusters of each row that are expanded for a first k-th best word
_NEXT = 4  # factor by which that number grows if too many clusters reach the k-th best word
_NEXT_SHARE = 0.4  # largest share of a row's clusters for which the larger number is tried
_WHOLE_SHARE = 0.15  # share of all (row, cluster) pairs above which scoring all words is cheaper than gathering
_LEAST_ROOM = 32  # pairs that are cheaper than scoring all words, even in a small layer
_FEW_NUMBERS = 2**23  # most entries of a slab that is always read as a whole
_PIECE, _SLOTS = 16, 4096  # slots of a piece of a slab, and slots read at a time
_PAIRS = 512  # pairs of a row and a cluster that are expanded at a time, after the first clusters
_SIZES = 8  # number of different sizes of the part of a single cluster that is read
# Scores of all rows. A GPU computes up to this many in the time that the host takes for one decision.
_AT_ONCE_ON_GPU = 2**26
_ONE_BY_ONE_SHARE = 0.4  # largest share of a single row's clusters that are expanded one by one

Best = tuple[Array, Array, Array]  # values and ids (N, K), and the (N,) share of clusters expanded


class WordsByCluster(NamedTuple):
    """The lower level of a two-level layer.

    Attributes:
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: The word in each slot, -1 where it is empty.
        form: One of `cluster_softmax.forms`, for products with the words.
    """

    slab_CSD: Array
    bias_CS: Array | None
    word_CS: Array
    form: Form | None

    @property
    def added_CS(self) -> Array:
        """The term to add to each score: the bias or 0, and -inf in empty slots."""
        return cluster_softmax.added_scores(self.bias_CS, self.word_CS, wide(self.slab_CSD.dtype))

    def scores(self, hidden_ND: Array) -> Array:
        """Return the (N, C, S) scores of all words, -inf in empty slots."""
        scores_NF = product(hidden_ND, self.slab_CSD.reshape(-1, self.slab_CSD.shape[2]))
        if self.bias_CS is not None:
            scores_NF = plus_bias(scores_NF, self.bias_CS.reshape(-1))
        return jnp.where(self.word_CS < 0, -jnp.inf, scores_NF.reshape(-1, *self.word_CS.shape))

    def scores_of_one(self, hidden_1D: Array, cluster: Array) -> tuple[Array, Array]:
        """Return the (1, S) scores of a cluster's words for a single row, -inf in empty slots, and the words (S,).

        Reading the slab dominates the time, and empty slots come last. Most of them are skipped: the number of slots
        that are read is one of a few sizes, each of which is a program.
        """
        word_S = self.word_CS[cluster]
        (width,), dim = word_S.shape, self.slab_CSD.shape[2]
        step, zero = -(-width // _SIZES), jnp.zeros_like(cluster)

        def products_of_first(slots: int) -> Array:
            (words_XD,) = lax.dynamic_slice(self.slab_CSD, (cluster, zero, zero), (1, slots, dim))
            return jnp.pad(product(hidden_1D, words_XD), ((0, 0), (0, width - slots)))

        sizes = [partial(products_of_first, min(last, width)) for last in range(step, width + step, step)]
        scores_1S = lax.switch(((word_S >= 0).sum() - 1) // step, sizes)
        if self.bias_CS is not None:
            scores_1S = scores_1S + self.bias_CS[cluster]
        return jnp.where(word_S < 0, -jnp.inf, scores_1S), word_S

    def in_cluster(self, hidden_ND: Array, row_P: Array, cluster_P: Array) -> Array:
        """Return (P, S) log P(w | c, h) for pairs of a row and a cluster; meaningless beyond the last cluster."""
        scores_PS = cluster_softmax.pair_scores(hidden_ND, *self[:3], row_P, cluster_P, self.form)
        return jax.nn.log_softmax(scores_PS, axis=1)

    def joint(self, hidden_ND: Array, log_cluster_NC: Array, cluster_NM: Array) -> tuple[Array, Array]:
        """Return (N, M S) log P(c, w | h) of M clusters of each row, and the words; -inf in empty slots."""
        rows, chosen = cluster_NM.shape
        row_P = jnp.repeat(jnp.arange(rows), chosen)
        in_cluster_NMS = self.in_cluster(hidden_ND, row_P, cluster_NM.ravel()).reshape(rows, chosen, -1)
        log_cluster_NM = jnp.take_along_axis(log_cluster_NC, cluster_NM, axis=1, mode="fill", fill_value=-jnp.inf)
        joint_NMS = in_cluster_NMS + log_cluster_NM[:, :, None]
        return joint_NMS.reshape(rows, -1), self.word_CS[cluster_NM].reshape(rows, -1)


class _Way(Enum):
    """The ways to search a batch of rows."""

    KERNEL = auto()  # by our C++ kernel
    ALL_WORDS = auto()  # with all words scored
    ROUNDS = auto()  # the likeliest clusters of all rows together, in rounds
    ONE_BY_ONE = auto()  # the clusters of a single row one by one, the likeliest first


class _Plan(NamedTuple):
    """How a batch of rows is searched. Rows that a search by bounds does not settle have all their words scored.

    Attributes:
        on_cpu: The way on a CPU.
        elsewhere: The way on any other device.
        rounds: Number of clusters of each row that each round expands first.
        near_uniform: Whether the distributions over clusters are too near to uniform for a search by bounds.
        selects_by_kernels: Whether Pallas kernels select the best of all words.
    """

    on_cpu: _Way
    elsewhere: _Way
    rounds: tuple[int, ...] = ()
    near_uniform: Array | bool = False
    selects_by_kernels: bool = False


def _planned(log_cluster_NC: Array, words: WordsByCluster, k: int) -> _Plan:
    (rows, clusters), width = log_cluster_NC.shape, words.word_CS.shape[1]
    if words.form == CPP:
        return _Plan(_Way.KERNEL, _Way.KERNEL)
    first = min(clusters, max(_FIRST_CLUSTERS, -(-k // width)))
    # If k > first, at least one cluster gives two of the words, so the k-th best word has at most half the probability
    # of the likeliest cluster. If many clusters reach that half, the first few cannot settle the row.
    reaching_NC = log_cluster_NC >= log_cluster_NC.max(axis=1, keepdims=True) - math.log(2.0)
    # On a GPU the host would wait for each decision and each iteration of a loop.
    is_small = rows * clusters * width <= _AT_ONCE_ON_GPU
    is_one_row = rows == 1 and first == min(clusters, _FIRST_CLUSTERS)
    return _Plan(
        on_cpu=_Way.ONE_BY_ONE if is_one_row else _Way.ROUNDS,
        elsewhere=_Way.ALL_WORDS if is_small else _Way.ROUNDS,
        rounds=(first, _NEXT * first) if _NEXT * first < _NEXT_SHARE * clusters else (first,),
        near_uniform=(reaching_NC.mean() > _WHOLE_SHARE) & (k > first),
        selects_by_kernels=_selects_by_kernels(words, k),
    )


def _selects_by_kernels(words: WordsByCluster, k: int) -> bool:
    if words.form != KERNELS:
        return False
    # Imported here because not every JAX has Pallas' Triton backend.
    from vocabench.impls.on_jax.pallas import topk_kernels

    clusters, width = words.word_CS.shape
    return topk_kernels.takes(clusters, width, k)


def search(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int) -> Best:
    """Return the values and ids (N, K) of the k likeliest words, and the (N,) share of clusters expanded.

    Args:
        hidden_ND: Vectors that the word vectors are multiplied with.
        log_cluster_NC: log P(c | h).
        words: The words of each cluster. No cluster is empty.
        k: Number of words, from 1 to V.
    """
    plan = _planned(log_cluster_NC, words, k)
    searches = {
        _Way.KERNEL: _search_by_kernel,
        _Way.ALL_WORDS: _search_all_words,
        _Way.ROUNDS: _search_in_rounds,
        _Way.ONE_BY_ONE: _search_one_by_one,
    }
    on_cpu, elsewhere = (
        partial(searches[way], hidden_ND, log_cluster_NC, words, k, plan) for way in (plan.on_cpu, plan.elsewhere)
    )
    return on_cpu() if plan.on_cpu == plan.elsewhere else lax.platform_dependent(cpu=on_cpu, default=elsewhere)


def _search_by_kernel(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int, plan: _Plan) -> Best:
    return cpp_kernels.likeliest(hidden_ND.astype(words.slab_CSD.dtype), log_cluster_NC, *words[:3], k)


def _search_all_words(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int, plan: _Plan) -> Best:
    best_of_all = _best_of_all_by_kernels if plan.selects_by_kernels else _best_of_all
    share_N = varying_as(hidden_ND, jnp.ones(hidden_ND.shape[0], jnp.float32))
    return *best_of_all(hidden_ND, log_cluster_NC, words, k), share_N


def _search_in_rounds(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int, plan: _Plan) -> Best:
    rows = hidden_ND.shape[0]
    values_NK, ids_NK = jnp.zeros((rows, k), log_cluster_NC.dtype), jnp.zeros((rows, k), words.word_CS.dtype)
    start = (values_NK, ids_NK, jnp.zeros(rows, jnp.float32)), jnp.array(False)
    best, settled = varying_as(hidden_ND, start)
    for first in plan.rounds:
        best, settled = lax.cond(
            settled | plan.near_uniform,
            partial(lambda *unchanged: unchanged, best, settled),
            partial(_best_by_bounds, hidden_ND, log_cluster_NC, words, k, first),
        )
    # Called once, because a second call would be compiled separately.
    all_words = partial(_search_all_words, hidden_ND, log_cluster_NC, words, k, plan)
    return lax.cond(settled, lambda: best, all_words)


def _search_one_by_one(hidden_1D: Array, log_cluster_1C: Array, words: WordsByCluster, k: int, plan: _Plan) -> Best:
    inputs = hidden_1D, log_cluster_1C, words, k
    number, settled, candidates = _expanded_one_by_one(*inputs, jnp.asarray(plan.near_uniform))
    share_1 = (number / log_cluster_1C.shape[1]).astype(jnp.float32)[None]
    return lax.cond(settled, lambda: (*best_by_id(*candidates, k), share_1), partial(_search_all_words, *inputs, plan))


def _expanded_one_by_one(
    hidden_1D: Array, log_cluster_1C: Array, words: WordsByCluster, k: int, near_uniform: Array
) -> tuple[Array, Array, tuple[Array, Array]]:
    """Expand the clusters of one row, the likeliest first, until the next one is below the k-th best word.

    The first few clusters must hold k words. Nothing is expanded if `near_uniform`. The search gives up if, after a few
    clusters, the k-th best word still leaves too many clusters to expand: further clusters would hardly raise it.

    Returns:
        The number of clusters expanded, whether no other cluster can hold one of the k best words, and the values and
        ids (1, X) of the best words of each expanded cluster.
    """
    (clusters, width), kind = words.word_CS.shape, log_cluster_1C.dtype
    best_each, most = min(k, width), min(clusters, max(_LEAST_ROOM, int(_ONE_BY_ONE_SHARE * clusters)))
    (falling_M,), (order_M,) = top_k(log_cluster_1C, min(most + 1, clusters))
    falling_M = jnp.append(falling_M, -jnp.inf)

    def reaches(state: tuple[Array, ...]) -> Array:
        number, best_K, *_ = state
        lowest = best_K[-1]
        hopeful = (number < _NEXT * _FIRST_CLUSTERS) | (falling_M[most] < lowest)
        return ~near_uniform & hopeful & (number < most) & (falling_M[number] >= lowest)

    def visit(state: tuple[Array, ...]) -> tuple[Array, ...]:
        number, best_K, values_ME, ids_ME = state
        scores_1S, word_S = words.scores_of_one(hidden_1D, order_M[number])
        best_1E, slot_1E = top_k(jax.nn.log_softmax(scores_1S) + falling_M[number], best_each)
        values_ME = lax.dynamic_update_slice_in_dim(values_ME, best_1E, number, 0)
        ids_ME = lax.dynamic_update_slice_in_dim(ids_ME, word_S[slot_1E], number, 0)
        return number + 1, top_k(jnp.append(best_K, best_1E), k)[0], values_ME, ids_ME

    blank_ME = jnp.full((most, best_each), -jnp.inf, kind), jnp.full((most, best_each), -1, words.word_CS.dtype)
    start = jnp.int32(0), jnp.full(k, -jnp.inf, kind), *blank_ME
    number, best_K, values_ME, ids_ME = lax.while_loop(reaches, visit, varying_as(log_cluster_1C, start))
    settled = (falling_M[number] < best_K[-1]) | (number == clusters)
    return number, settled, (values_ME.reshape(1, -1), ids_ME.reshape(1, -1))


def _best_by_bounds(
    hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int, first: int
) -> tuple[Best, Array]:
    """Return the best words of the clusters that are needed for them, and whether these were few enough to expand.

    The `first` clusters of each row are expanded first, then those that reach the k-th best word so far.
    """
    rows, clusters = log_cluster_NC.shape
    row_N1 = jnp.arange(rows)[:, None]
    _, chosen_NM = top_k(log_cluster_NC, first)
    values_NK, ids_NK = best_by_id(*words.joint(hidden_ND, log_cluster_NC, chosen_NM), k)
    # A cluster that equals the k-th best word may hold a word of lower id. Only clusters strictly below are skipped.
    open_NC = (log_cluster_NC >= values_NK[:, -1:]).at[row_N1, chosen_NM].set(False)
    share_N = (first + open_NC.sum(axis=1)).astype(jnp.float32) / clusters
    room = min(open_NC.size, max(_LEAST_ROOM, int(_WHOLE_SHARE * open_NC.size)))

    def further() -> Best:
        return *_joined_by_open(values_NK, ids_NK, hidden_ND, log_cluster_NC, words, open_NC, room), share_N

    settled = open_NC.sum() <= room
    return lax.cond(settled, further, lambda: (values_NK, ids_NK, share_N)), settled


def _joined_by_open(
    values_NK: Array, ids_NK: Array, hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster,
    open_NC: Array, room: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Merge the best words so far with those of the open clusters. All rows together have at most `room` of them."""
    (rows, clusters), k = open_NC.shape, values_NK.shape[1]
    best_each = min(k, words.word_CS.shape[1])
    at_once = min(_PAIRS, room)
    size = -(-room // at_once) * at_once
    cluster_P, row_P = jnp.nonzero(open_NC.T, size=size, fill_value=(clusters, rows))  # sorted by cluster

    def visit(number: Array, best: tuple[Array, Array]) -> tuple[Array, Array]:
        values_NCE, ids_NCE = best
        row_B, cluster_B = (lax.dynamic_slice_in_dim(array, number * at_once, at_once) for array in (row_P, cluster_P))
        in_cluster_BS = words.in_cluster(hidden_ND, row_B, cluster_B)
        joint_BS = in_cluster_BS + log_cluster_NC.at[row_B, cluster_B].get(mode="fill", fill_value=-jnp.inf)[:, None]
        # The best words of each pair are stored at the row and cluster of the pair.
        best_BE, slot_BE = top_k(joint_BS, best_each)
        values_NCE = values_NCE.at[row_B, cluster_B].set(best_BE, mode="drop")
        return values_NCE, ids_NCE.at[row_B, cluster_B].set(words.word_CS[cluster_B[:, None], slot_BE], mode="drop")

    shape = (rows, clusters, best_each)
    blank = jnp.full(shape, -jnp.inf, values_NK.dtype), jnp.full(shape, -1, words.word_CS.dtype)
    further = lax.fori_loop(0, (open_NC.sum() + at_once - 1) // at_once, visit, varying_as(values_NK, blank))
    values, ids = (
        jnp.concatenate([old, new.reshape(rows, -1)], 1) for old, new in zip((values_NK, ids_NK), further, strict=True)
    )
    return best_by_id(values, ids, k)


def _best_of_all(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int) -> tuple[Array, Array]:
    """Return the values and ids (N, K) of the k likeliest words, with all words scored."""
    (rows, clusters), width = log_cluster_NC.shape, words.word_CS.shape[1]
    scores_NCS = _products(hidden_ND, words).reshape(rows, clusters, width) + words.added_CS
    highest_NC = scores_NCS.max(axis=2)
    sum_NC = jnp.exp(scores_NCS - highest_NC[:, :, None]).sum(axis=2)
    shift_NC = log_cluster_NC - highest_NC - jnp.log(sum_NC)
    # The k best words are in the k clusters with the highest best words. One more cluster shows whether there is a tie.
    count = min(k + 1, clusters)
    bests_NM, chosen_NM = top_k(highest_NC + shift_NC, count)

    def best_of_clusters(chosen_NM: Array) -> tuple[Array, Array]:
        joint_NMS = jnp.take_along_axis(scores_NCS, chosen_NM[:, :, None], axis=1)
        joint_NMS = joint_NMS + jnp.take_along_axis(shift_NC, chosen_NM, axis=1)[:, :, None]
        return best_by_id(joint_NMS.reshape(rows, -1), words.word_CS[chosen_NM].reshape(rows, -1), k)

    values_NK, ids_NK = best_of_clusters(chosen_NM[:, : min(k, clusters)])
    if count <= k:
        return values_NK, ids_NK
    cluster_NC = jnp.broadcast_to(jnp.arange(clusters), (rows, clusters))
    tied = (bests_NM[:, k] >= values_NK[:, -1]).any()
    return lax.cond(tied, lambda: best_of_clusters(cluster_NC), lambda: (values_NK, ids_NK))


def _best_of_all_by_kernels(
    hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int
) -> tuple[Array, Array]:
    """Return the same as `_best_of_all`, with the best words selected by Pallas kernels."""
    from vocabench.impls.on_jax.pallas import topk_kernels

    scores_NF = _products(hidden_ND, words)
    return topk_kernels.best_of_clusters(scores_NF, words.bias_CS, log_cluster_NC, words.word_CS, k)


def _products(hidden_ND: Array, words: WordsByCluster) -> Array:
    """Return the (N, C S) products with all words; meaningless in empty slots."""
    (clusters, width), dim = words.word_CS.shape, words.slab_CSD.shape[2]

    def at_once(hidden_ND: Array) -> Array:
        return product(hidden_ND, words.slab_CSD.reshape(-1, dim))

    def by_pieces(hidden_1D: Array) -> Array:
        piece = math.gcd(width, _PIECE)
        together = min(_SLOTS, clusters * width) // piece
        pieces_MSD = words.slab_CSD.reshape(-1, piece, dim)
        holds_M = (words.word_CS >= 0).reshape(-1, piece).any(axis=1)
        count, size = holds_M.shape[0], -(-holds_M.shape[0] // together) * together
        (held_M,) = jnp.nonzero(holds_M, size=size, fill_value=count)

        def visit(number: Array, products_MS: Array) -> Array:
            held_B = lax.dynamic_slice_in_dim(held_M, number * together, together)
            products_1F = product(hidden_1D, pieces_MSD[held_B].reshape(-1, dim))
            return lax.dynamic_update_slice_in_dim(products_MS, products_1F.reshape(-1, piece), number * together, 0)

        blank_MS = jnp.zeros((size, piece), wide(words.slab_CSD.dtype))
        products_MS = lax.fori_loop(
            0, (holds_M.sum() + together - 1) // together, visit, varying_as(hidden_1D, blank_MS)
        )
        return products_MS[jnp.maximum(jnp.cumsum(holds_M) - 1, 0)].reshape(1, -1)

    # Reading the slab dominates the time for one row, so pieces of the slab without words are skipped.
    if hidden_ND.shape[0] > 1 or words.slab_CSD.size <= _FEW_NUMBERS:
        return at_once(hidden_ND)
    # On a GPU the host would wait for each iteration of the loop.
    return lax.platform_dependent(hidden_ND, cpu=by_pieces, default=at_once)


def beam(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, k: int, width: int) -> tuple[Array, Array]:
    """Return the values and ids (N, K) of the k likeliest words of each row's `width` likeliest clusters."""
    _, chosen_NW = top_k(log_cluster_NC, min(width, log_cluster_NC.shape[1]))
    return best_by_id(*words.joint(hidden_ND, log_cluster_NC, chosen_NW), k)


def sample(hidden_ND: Array, log_cluster_NC: Array, words: WordsByCluster, uniforms_N2: Array) -> Array:
    """Draw (N,) words: a cluster with the first uniform number, one of its words with the second."""
    cluster_N = draw(jnp.exp(log_cluster_NC), uniforms_N2[:, 0])
    in_cluster_NS = words.in_cluster(hidden_ND, jnp.arange(hidden_ND.shape[0]), cluster_N)
    return words.word_CS[cluster_N, draw(jnp.exp(in_cluster_NS), uniforms_N2[:, 1])]
