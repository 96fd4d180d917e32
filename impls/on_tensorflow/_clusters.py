"""The softmax within a word's cluster, for tokens of many clusters at once: the costly half of a two-level layer.

Tokens are sorted by cluster, words are stored by cluster in a (C, S, D) slab, and the sorted tokens are cut into tiles
of at most T tokens of one cluster: one batched product scores all tiles against their clusters' words. A cluster's
matrix is gathered once a tile, never once a token. The gradient is written out, so that the exponentials of the
forward pass serve it too.
"""

from __future__ import annotations

import tensorflow as tf

from impls.on_tensorflow._layer import Tensor, at_least_float32

TILE = 32  # tokens; measured fastest of 16 and 32 on two CPU cores, where a tile's gather costs what its padding saves


def in_cluster_nll(
    hidden_ND: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, word_CS: Tensor, cluster_N: Tensor, slot_N: Tensor
) -> Tensor:
    """(N,) negative log-likelihood of each target among the words of its cluster, in nats.

    Args:
        hidden_ND: (N, D).
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: The word in each slot; negative where the slot is empty.
        cluster_N, slot_N: int32: where the target words stand.
    """
    clusters, width = word_CS.shape
    order_N = tf.argsort(cluster_N, stable=True)
    place_N = tf.math.invert_permutation(order_N)
    tile_index_MT, own_MT, cluster_M = _cut(tf.gather(cluster_N, order_N), clusters)
    target_MTS = tf.one_hot(tf.gather(tf.gather(slot_N, order_N), tile_index_MT), width, dtype=tf.bool, on_value=True,
                            off_value=False)  # fmt: skip
    position_N = tf.boolean_mask(tf.reshape(tf.range(tf.size(own_MT)), tf.shape(own_MT)), own_MT)

    @tf.custom_gradient
    def nll(hidden_ND: Tensor, slab_CSD: Tensor, bias_CS: Tensor) -> tuple[Tensor, object]:
        hidden_MTD = tf.gather(tf.gather(tf.cast(hidden_ND, slab_CSD.dtype), order_N), tile_index_MT)
        words_MSD = tf.gather(slab_CSD, cluster_M)
        scores_MTS = at_least_float32(tf.matmul(hidden_MTD, words_MSD, transpose_b=True))
        scores_MTS += tf.cast(tf.gather(bias_CS, cluster_M), scores_MTS.dtype)[:, None, :]
        highest_MT1 = tf.reduce_max(scores_MTS, axis=2, keepdims=True)
        exp_MTS = tf.exp(scores_MTS - highest_MT1)
        sum_MT1 = tf.reduce_sum(exp_MTS, axis=2, keepdims=True)
        picked_MT = tf.reduce_sum(tf.where(target_MTS, scores_MTS, tf.zeros_like(scores_MTS)), axis=2)
        nll_MT = (highest_MT1 + tf.math.log(sum_MT1))[:, :, 0] - picked_MT
        nll_N = tf.gather(tf.gather(tf.reshape(nll_MT, [-1]), position_N), place_N)

        def gradient(dnll_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            scale_MT = tf.where(own_MT, tf.gather(tf.gather(dnll_N, order_N), tile_index_MT), tf.zeros_like(nll_MT))
            dscores_MTS = (exp_MTS / sum_MT1 - tf.cast(target_MTS, exp_MTS.dtype)) * scale_MT[:, :, None]
            dbias_CS = _by_cluster(tf.reduce_sum(dscores_MTS, axis=1), cluster_M, clusters)
            dscores_MTS = tf.cast(dscores_MTS, slab_CSD.dtype)
            dhidden_MTD = tf.matmul(dscores_MTS, words_MSD)
            dhidden_ND = tf.gather(tf.reshape(dhidden_MTD, [-1, dhidden_MTD.shape[2]]), tf.gather(position_N, place_N))
            dslab_CSD = _by_cluster(tf.matmul(dscores_MTS, hidden_MTD, transpose_a=True), cluster_M, clusters)
            return tf.cast(dhidden_ND, hidden_ND.dtype), dslab_CSD, tf.cast(dbias_CS, bias_CS.dtype)

        return nll_N, gradient

    # An empty slot has a bias that no exponential survives; where there are no biases, that is all there is.
    closed_CS = tf.where(word_CS < 0, -tf.cast(float("inf"), slab_CSD.dtype), tf.zeros([], slab_CSD.dtype))
    return nll(hidden_ND, tf.convert_to_tensor(slab_CSD), closed_CS if bias_CS is None else bias_CS + closed_CS)


def _cut(cluster_sorted_N: Tensor, clusters: int) -> tuple[Tensor, Tensor, Tensor]:
    """(M, T) sorted tokens of each tile, (M, T) which of them are its own, and (M,) its cluster."""
    end_C = tf.searchsorted(cluster_sorted_N, tf.range(clusters), side="right")
    begin_C = tf.concat([[0], end_C[:-1]], axis=0)
    tiles_C = (end_C - begin_C + TILE - 1) // TILE
    last_C = tf.cumsum(tiles_C)
    tile_M = tf.range(last_C[-1])
    cluster_M = tf.searchsorted(last_C, tile_M, side="right")
    start_M = tf.gather(begin_C, cluster_M) + (tile_M - tf.gather(last_C - tiles_C, cluster_M)) * TILE
    index_MT = start_M[:, None] + tf.range(TILE)
    own_MT = index_MT < tf.gather(end_C, cluster_M)[:, None]
    return tf.minimum(index_MT, tf.size(cluster_sorted_N) - 1), own_MT, cluster_M


def _by_cluster(by_tile: Tensor, cluster_M: Tensor, clusters: int) -> Tensor:
    """Sums over the tiles of each cluster."""
    return tf.math.unsorted_segment_sum(by_tile, cluster_M, clusters)
