"""The softmax within a word's cluster, for tokens of many clusters at once: the costly half of a two-level layer.

Words are stored by cluster in a (C, S, D) slab. Every cluster has one tile of T places for the first of its tokens, so
that one batched product reads the slab as it is stored, and writes its gradient in the same layout: no cluster matrix
is copied. Tokens beyond the T-th, which frequent words bring to a few clusters, are put into further tiles. Only these
gather their cluster's matrix, and their gradients are added to it. The gradient is written out, from the exponentials
of the forward pass.

On a CPU with a compiler, the products are C++ kernels (`cpp_kernels.py`), which need no tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from vocabench.impls.cpp import CPP
from vocabench.impls.forms import Form
from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, add_rows, at_least_float32, product, traced

# Places of a further tile. On two CPU cores, 32, 64 and 128 are equally fast.
_FURTHER = 32
_POWERS = 2 ** np.arange(3, 31, dtype=np.int32)  # possible sizes of a cluster's first tile
# Pairs of a row and a cluster in a tile, when decoding.
_PAIRS = 32
# The bias of an empty slot: its exponential is zero, and it is finite so that clusters without words have no NaN.
_CLOSED = -1e30

TILES = Form("tiles", "a batched product over all clusters, further tiles for full ones")

_product_of_row = traced(product, jit_compile=True)  # XLA reads the words a third faster than TensorFlow's own kernel


def forms(dtype: str) -> tuple[Form, ...]:
    """Return the forms for word vectors of a spec's `dtype`, the fastest on a CPU first."""
    return (CPP, TILES) if cpp_kernels.known(dtype) else (TILES,)


def in_cluster_nll(
    hidden_ND: Tensor,
    slab_CSD: Tensor,
    bias_CS: Tensor | None,
    word_CS: Tensor,
    cluster_N: Tensor,
    slot_N: Tensor,
    form: Form | None,
    tokens: float | Tensor | None = None,
) -> Tensor:
    """Return the (N,) negative log-likelihood of each target among the words of its cluster, in nats.

    Args:
        hidden_ND: (N, D).
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: The word in each slot; negative where the slot is empty.
        cluster_N, slot_N: int32: the clusters and slots of the target words.
        form: One of `forms`.
        tokens: Expected number of tokens, which determines the layout; N if left out.
    """
    arguments = hidden_ND, slab_CSD, bias_CS, word_CS, cluster_N, slot_N
    compute = _nll_by_kernels if form == CPP else partial(_nll_in_tiles, tokens=tokens)
    if cluster_N.shape[0]:
        return compute(*arguments)
    # Empty tiles read any token, so there must be one.
    no_losses = partial(tf.reduce_sum, at_least_float32(hidden_ND), axis=1)
    return tf.cond(tf.size(cluster_N) > 0, lambda: compute(*arguments), no_losses)


def _nll_in_tiles(
    hidden_ND: Tensor,
    slab_CSD: Tensor,
    bias_CS: Tensor | None,
    word_CS: Tensor,
    cluster_N: Tensor,
    slot_N: Tensor,
    tokens: float | Tensor | None,
) -> Tensor:
    clusters, width = word_CS.shape
    expected = count(cluster_N) if tokens is None else tokens
    first, further, place_N = _cut(cluster_N, clusters, _first_places(expected, clusters), _FURTHER)

    @tf.custom_gradient
    def nll(hidden_ND: Tensor, slab_CSD: Tensor, bias_CS: Tensor) -> tuple[Tensor, object]:
        def forward(tiles: _Tiles, words_MSD: Tensor, bias_MS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hidden_MTD = tf.cast(tf.gather(hidden_ND, tiles.token_MT), words_MSD.dtype)
            scores_MTS = at_least_float32(tf.matmul(hidden_MTD, words_MSD, transpose_b=True))
            scores_MTS += tf.cast(bias_MS, scores_MTS.dtype)[:, None, :]
            nll_R, excess_RS = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
                features=tf.reshape(scores_MTS, [-1, width]),
                labels=tf.reshape(tf.gather(slot_N, tiles.token_MT), [-1]),
            )
            return hidden_MTD, nll_R, tf.reshape(excess_RS, tf.shape(scores_MTS))  # P - one-hot

        gathered_MSD = tf.gather(slab_CSD, further.cluster_M)
        hidden_CTD, nll_P, excess_CTS = forward(first, slab_CSD, bias_CS)
        hidden_MTD, nll_Q, excess_MTS = forward(further, gathered_MSD, tf.gather(bias_CS, further.cluster_M))

        def gradient(dnll_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            def backward(
                tiles: _Tiles, words_MSD: Tensor, hidden_MTD: Tensor, excess_MTS: Tensor
            ) -> tuple[Tensor, Tensor, Tensor]:
                dnll_MT = tf.where(tiles.occupied_MT, tf.gather(dnll_N, tiles.token_MT), tf.zeros([], dnll_N.dtype))
                dscores_MTS = excess_MTS * dnll_MT[:, :, None]
                dbias_MS = tf.cast(tf.reduce_sum(dscores_MTS, axis=1), bias_CS.dtype)
                dscores_MTS = tf.cast(dscores_MTS, words_MSD.dtype)
                dhidden_MTD = tf.matmul(dscores_MTS, words_MSD)
                dwords_MSD = tf.matmul(dscores_MTS, hidden_MTD, transpose_a=True)
                return tf.reshape(dhidden_MTD, [-1, hidden_ND.shape[1]]), dwords_MSD, dbias_MS

            dhidden_PD, dslab_CSD, dbias_CS = backward(first, slab_CSD, hidden_CTD, excess_CTS)
            dhidden_QD, dwords_MSD, dbias_MS = backward(further, gathered_MSD, hidden_MTD, excess_MTS)
            dhidden_ND = tf.cast(tf.gather(tf.concat([dhidden_PD, dhidden_QD], axis=0), place_N), hidden_ND.dtype)
            dslab_CSD = add_rows(dslab_CSD, further.cluster_M, dwords_MSD)
            return dhidden_ND, dslab_CSD, add_rows(dbias_CS, further.cluster_M, dbias_MS)

        return tf.gather(tf.concat([nll_P, nll_Q], axis=0), place_N), gradient

    return nll(hidden_ND, tf.convert_to_tensor(slab_CSD), _closing(bias_CS, word_CS, slab_CSD.dtype))


def _nll_by_kernels(
    hidden_ND: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, word_CS: Tensor, cluster_N: Tensor, slot_N: Tensor
) -> Tensor:
    order_N, _, end_C = _sorted(cluster_N, word_CS.shape[0])
    slot_sorted_N, place_N = tf.gather(slot_N, order_N), tf.math.invert_permutation(order_N)
    word_CS = tf.identity(word_CS)  # within a branch, a gradient cannot read a constant from outside

    @tf.custom_gradient
    def nll(hidden_ND: Tensor, slab_CSD: Tensor, *bias_CS: Tensor) -> tuple[Tensor, object]:
        bias = bias_CS[0] if bias_CS else None
        tokens = hidden_ND, order_N, slot_sorted_N
        losses_N, excess_NS, dhidden_ND = cpp_kernels.losses(*tokens, slab_CSD, bias, word_CS, end_C)

        def gradient(dnll_N: Tensor) -> tuple[Tensor, ...]:
            tokens = tf.gather(dnll_N, order_N), hidden_ND, order_N
            dwords = cpp_kernels.gradients(excess_NS, *tokens, slab_CSD, word_CS, end_C)
            return dhidden_ND * dnll_N[:, None], *dwords[: 1 + len(bias_CS)]

        return tf.gather(losses_N, place_N), gradient

    words = (tf.convert_to_tensor(array) for array in (slab_CSD, bias_CS) if array is not None)
    return nll(tf.cast(hidden_ND, slab_CSD.dtype), *words)


def log_by_kernels(
    hidden_ND: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, word_CS: Tensor, row_P: Tensor, cluster_P: Tensor
) -> Tensor:
    """Return (P, S) log P(w | c, h) for pairs of a row and a cluster; -inf in an empty slot."""
    order_P, _, end_C = _sorted(cluster_P, word_CS.shape[0])
    scores_PS = cpp_kernels.scores(hidden_ND, tf.gather(row_P, order_P), slab_CSD, bias_CS, word_CS, end_C)
    return tf.gather(tf.nn.log_softmax(scores_PS), tf.math.invert_permutation(order_P))


def pair_scores(
    hidden_ND: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, word_CS: Tensor, row_P: Tensor, cluster_P: Tensor
) -> Tensor:
    """Return (P, S) scores of the words of cluster c, for pairs of a row and a cluster, in few large operations.

    The score of an empty slot is so low that its exponential is zero.
    """
    clusters, width = word_CS.shape
    hidden_ND = tf.cast(hidden_ND, slab_CSD.dtype)
    # If most clusters occur, the slab is read as it is stored. If few occur, their matrices are copied.
    occurring = tf.size(tf.unique(cluster_P)[0])
    places = tf.where(2 * occurring > clusters, _first_places(count(cluster_P), clusters), 0)
    first, further, place_P = _cut(cluster_P, clusters, places, _PAIRS)

    def scores_of_tiles(tiles: _Tiles, words_MSD: Tensor) -> Tensor:
        hidden_MTD = tf.gather(hidden_ND, tf.gather(row_P, tiles.token_MT))
        return tf.reshape(tf.matmul(hidden_MTD, words_MSD, transpose_b=True), [-1, width])

    scores_QS = scores_of_tiles(further, tf.gather(slab_CSD, further.cluster_M))
    scores_PS = tf.gather(tf.concat([scores_of_tiles(first, slab_CSD), scores_QS], axis=0), place_P)
    scores_PS = at_least_float32(scores_PS)
    return scores_PS + tf.cast(tf.gather(_closing(bias_CS, word_CS, slab_CSD.dtype), cluster_P), scores_PS.dtype)


def log_in_runs(
    hidden_RD: Tensor,
    slab_CSD: Tensor,
    bias_CS: Tensor | None,
    word_CS: Tensor,
    cluster_U: Tensor,
    begin_U: Tensor,
    end_U: Tensor,
) -> Tensor:
    """Return (P, S) log P(w | c, h) for runs of rows with the same cluster; hugely negative in an empty slot.

    A loop reads the clusters as they are stored, without their empty slots, and leaves the scores in a processor's
    cache.

    Args:
        hidden_RD: Factors of the products with the word vectors.
        slab_CSD, bias_CS, word_CS: The arguments of `in_cluster_nll`. A cluster's words are in its first slots.
        cluster_U: int32: the cluster of each run.
        begin_U, end_U: int32: the rows of each run.
    """
    width, size_C, in_cluster = word_CS.shape[1], sizes(word_CS), log_in_cluster(slab_CSD, bias_CS)
    first_U = cluster_U * width
    run_U4 = tf.stack([begin_U, end_U, first_U, first_U + tf.gather(size_C, cluster_U)], axis=1)
    hidden_RD, dtype = tf.cast(hidden_RD, slab_CSD.dtype), at_least_float32(slab_CSD[:0]).dtype

    def visit(number: Tensor, log_probs: tf.TensorArray) -> tuple[Tensor, tf.TensorArray]:
        begin, end, first, last = tf.unstack(run_U4[number])
        empty = [[0, 0], [0, width - (last - first)]]
        log_RS = tf.pad(in_cluster(hidden_RD[begin:end], first, last), empty, constant_values=tf.cast(_CLOSED, dtype))
        return number + 1, log_probs.write(number, tf.ensure_shape(log_RS, [None, width]))

    runs = tf.size(cluster_U)
    # An additional run without rows: executed eagerly, TensorFlow cannot concatenate zero arrays.
    log_probs = tf.TensorArray(dtype, size=runs + 1, element_shape=[None, width], infer_shape=False)
    log_probs = log_probs.write(runs, tf.zeros([0, width], dtype))
    _, log_probs = tf.while_loop(lambda number, _: number < runs, visit, (tf.constant(0), log_probs))
    return log_probs.concat()


def log_of_all(
    hidden_ND: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, word_CS: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log P(w | c, h) of all words, by a loop as in `log_in_runs`.

    Returns:
        (F,) values of one cluster after the other, row by row, without empty slots.
        (C,) first place of each cluster, and (C,) places from one row to the next.
        (N, C) highest value of each cluster.
    """
    (clusters, width), size_C, in_cluster = word_CS.shape, sizes(word_CS), log_in_cluster(slab_CSD, bias_CS)
    hidden_ND, dtype = tf.cast(hidden_ND, slab_CSD.dtype), at_least_float32(slab_CSD[:0]).dtype
    rows = tf.shape(hidden_ND)[0]

    def visit(cluster: Tensor, log_probs: tf.TensorArray, highest: tf.TensorArray) -> tuple[Any, ...]:
        first = cluster * width
        log_NS = in_cluster(hidden_ND, first, first + size_C[cluster])
        log_probs = log_probs.write(cluster, tf.reshape(log_NS, [-1]))
        return cluster + 1, log_probs, highest.write(cluster, tf.reduce_max(log_NS, axis=1))

    arrays = (tf.TensorArray(dtype, size=clusters, element_shape=[None], infer_shape=False) for _ in range(2))
    start = (tf.constant(0), *arrays)
    _, log_probs, highest = tf.while_loop(lambda cluster, *_: cluster < clusters, visit, start)
    start_C = tf.cast(rows, tf.int64) * tf.cumsum(tf.cast(size_C, tf.int64), exclusive=True)
    highest_CN = tf.ensure_shape(highest.stack(), [clusters, None])
    return log_probs.concat(), start_C, tf.cast(size_C, tf.int64), tf.transpose(highest_CN)


def sizes(word_CS: Tensor) -> Tensor:
    """Return (C,) int32 numbers of words of the clusters."""
    return tf.math.count_nonzero(word_CS >= 0, axis=1, dtype=tf.int32)


def log_in_cluster(slab_CSD: Tensor, bias_CS: Tensor | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a function that computes (R, S) log P(w | c, h) of one cluster.

    Its arguments are hidden vectors (R, D), and the first and last place of the cluster's words in the flat slab.
    """
    words_FD = tf.reshape(slab_CSD, [-1, slab_CSD.shape[2]])
    bias_F = None if bias_CS is None else tf.reshape(bias_CS, [-1])

    def log_probs(hidden_RD: Tensor, first: Tensor, last: Tensor) -> Tensor:
        scores_RS = at_least_float32(tf.matmul(hidden_RD, words_FD[first:last], transpose_b=True))
        if bias_F is not None:
            scores_RS += tf.cast(bias_F[first:last], scores_RS.dtype)
        return tf.nn.log_softmax(scores_RS)

    return log_probs


def all_scores(hidden_ND: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, word_CS: Tensor) -> Tensor:
    """Return (N, C, S) scores of all words, by one product; in empty slots as in `pair_scores`."""
    words_FD = tf.reshape(slab_CSD, [-1, slab_CSD.shape[2]])
    scores_NF = at_least_float32((_product_of_row if hidden_ND.shape[0] == 1 else product)(hidden_ND, words_FD))
    closing_F = tf.reshape(_closing(bias_CS, word_CS, slab_CSD.dtype), [-1])
    return tf.reshape(scores_NF + tf.cast(closing_F, scores_NF.dtype), [-1, *word_CS.shape])


def _closing(bias_CS: Tensor | None, word_CS: Tensor, dtype: tf.DType) -> Tensor:
    """Return the biases, or zeros, and for empty slots a bias so low that its exponential is zero."""
    closed_CS = tf.where(word_CS < 0, tf.constant(_CLOSED, dtype), tf.zeros([], dtype))
    return closed_CS if bias_CS is None else bias_CS + closed_CS


class _Tiles(NamedTuple):
    """M tiles of T places.

    Attributes:
        token_MT: The token in each place; any token where the place is empty.
        occupied_MT: Whether the place holds a token.
        cluster_M: The cluster of each tile.
    """

    token_MT: Tensor
    occupied_MT: Tensor
    cluster_M: Tensor


def _cut(cluster_N: Tensor, clusters: int, first: int | Tensor, further: int) -> tuple[_Tiles, _Tiles, Tensor]:
    """Distribute tokens over tiles.

    Returns:
        A tile of `first` places for each cluster, tiles of `further` places for the remaining tokens, and (N,) the
        place of each token in both, the first before the further ones.
    """
    order_N, cluster_sorted_N, end_C = _sorted(cluster_N, clusters)
    cluster_C = tf.range(clusters)
    begin_C = tf.concat([[0], end_C[:-1]], axis=0)
    further_C = (tf.maximum(end_C - begin_C - first, 0) + further - 1) // further
    last_C = tf.cumsum(further_C)
    tile_M = tf.range(last_C[-1])
    cluster_M = tf.searchsorted(last_C, tile_M, side="right")
    start_M = tf.gather(begin_C + first, cluster_M) + (tile_M - tf.gather(last_C - further_C, cluster_M)) * further

    def tiles(start_M: Tensor, cluster_M: Tensor, places: int) -> _Tiles:
        index_MT = start_M[:, None] + tf.range(places)
        occupied_MT = index_MT < tf.gather(end_C, cluster_M)[:, None]
        return _Tiles(tf.gather(order_N, tf.minimum(index_MT, tf.size(order_N) - 1)), occupied_MT, cluster_M)

    rank_N = tf.range(tf.size(order_N)) - tf.gather(begin_C, cluster_sorted_N)
    beyond_N = tf.gather(clusters * first + (last_C - further_C) * further, cluster_sorted_N) + rank_N - first
    place_sorted_N = tf.where(rank_N < first, cluster_sorted_N * first + rank_N, beyond_N)
    place_N = tf.gather(place_sorted_N, tf.math.invert_permutation(order_N))
    return tiles(begin_C, cluster_C, first), tiles(start_M, cluster_M, further), place_N


def _sorted(cluster_N: Tensor, clusters: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (N,) tokens in order of their clusters, (N,) these clusters, and (C,) one past each cluster's last token.

    The sort is stable.
    """
    order_N = tf.argsort(cluster_N, stable=True)
    cluster_sorted_N = tf.gather(cluster_N, order_N)
    return order_N, cluster_sorted_N, tf.searchsorted(cluster_sorted_N, tf.range(clusters), side="right")


def count(array_N: Tensor) -> float | Tensor:
    """Return N, as a Python number if it is known while tracing."""
    known = array_N.shape[0]
    return tf.cast(tf.size(array_N), tf.float32) if known is None else known


def _first_places(tokens: float | Tensor, clusters: int) -> int | Tensor:
    """Return T: the tokens of an average cluster, rounded up to a power of two."""
    if tf.is_tensor(tokens):
        return tf.gather(_POWERS, tf.searchsorted(tf.cast(_POWERS, tf.float32), [tokens / clusters])[0])
    return int(_POWERS[np.searchsorted(_POWERS, tokens / clusters)])
