"""The softmax within a word's cluster, for tokens of many clusters at once: the costly half of a two-level layer.

Tokens are sorted by cluster, words are stored by cluster in a (C, S, D) slab, and the sorted tokens are cut into tiles
of at most T tokens of one cluster. There are at most N/T + min(C, N) tiles whatever the clusters are, so that shapes
are static, and a loop visits those that hold tokens: each is one small dense product with a slice of the slab. The
gradient is written out; d loss / d logits is made in the forward pass, where the exponentials are at hand, so that the
slab is read once in each direction and no cluster matrix is copied for a token.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from impls.on_jax._layer import Array, wide

TILE = 16  # tokens; measured fastest among 16 to 128 on two CPU cores at 10k and 44k words


class _Tiles(NamedTuple):
    """Where each tile lies among the sorted tokens; only the first `count` are real."""

    start_M: Array
    cluster_M: Array
    tokens_M: Array
    count: Array


def _cut(cluster_sorted_N: Array, clusters: int) -> _Tiles:
    tokens = cluster_sorted_N.shape[0]
    bound = -(-tokens // TILE) + min(clusters, tokens)
    end_C = jnp.searchsorted(cluster_sorted_N, jnp.arange(clusters), side="right").astype(jnp.int32)
    begin_C = jnp.concatenate([jnp.zeros(1, jnp.int32), end_C[:-1]])
    tiles_C = (end_C - begin_C + TILE - 1) // TILE
    last_C = jnp.cumsum(tiles_C)
    tile_M = jnp.arange(bound, dtype=jnp.int32)
    cluster_M = jnp.minimum(jnp.searchsorted(last_C, tile_M, side="right"), clusters - 1).astype(jnp.int32)
    start_M = begin_C[cluster_M] + (tile_M - (last_C - tiles_C)[cluster_M]) * TILE
    return _Tiles(start_M, cluster_M, jnp.minimum(end_C[cluster_M] - start_M, TILE), last_C[-1])


def _slice(array: Array, start: Array) -> Array:
    return lax.dynamic_slice_in_dim(array, start, TILE)


def _put(array: Array, piece: Array, start: Array) -> Array:
    # A tile writes TILE rows; those beyond its own tokens are written again by the tile they belong to, which comes
    # later.
    return lax.dynamic_update_slice_in_dim(array, piece, start, 0)


def _at(array: Array, index: Array) -> Array:
    return lax.dynamic_index_in_dim(array, index, keepdims=False)


def _padded(array_N: Array) -> Array:
    """Room for the last tile to read and write beyond the tokens."""
    return jnp.concatenate([array_N, jnp.zeros((TILE, *array_N.shape[1:]), array_N.dtype)])


@jax.custom_vjp
def in_cluster_nll(
    hidden_ND: Array, slab_CSD: Array, bias_CS: Array | None, word_CS: Array, cluster_N: Array, slot_N: Array
) -> Array:
    """(N,) negative log-likelihood of each target among the words of its cluster, in nats.

    Args:
        hidden_ND: (N, D).
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: The word in each slot; a number that is negative where the slot is empty.
        cluster_N, slot_N: Where the target words stand.
    """
    return _forward(hidden_ND, slab_CSD, bias_CS, word_CS, cluster_N, slot_N)[0]


def _forward(hidden_ND, slab_CSD, bias_CS, word_CS, cluster_N, slot_N):  # type: ignore[no-untyped-def]
    clusters, width, _ = slab_CSD.shape
    kind = wide(slab_CSD.dtype)
    order_N = jnp.argsort(cluster_N)
    tiles = _cut(cluster_N[order_N], clusters)
    hidden_sorted = _padded(hidden_ND[order_N].astype(slab_CSD.dtype))
    slot_sorted = _padded(slot_N[order_N])

    def visit(tile: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        dscores, nll = carry
        start, cluster = tiles.start_M[tile], tiles.cluster_M[tile]
        rows_TD, words_SD = _slice(hidden_sorted, start), _at(slab_CSD, cluster)
        scores_TS = jnp.matmul(rows_TD, words_SD.T, preferred_element_type=kind)
        if bias_CS is not None:
            scores_TS = scores_TS + _at(bias_CS, cluster)
        scores_TS = jnp.where(_at(word_CS, cluster) < 0, -jnp.inf, scores_TS)
        highest_T1 = scores_TS.max(axis=1, keepdims=True)
        exp_TS = jnp.exp(scores_TS - highest_T1)
        sum_T1 = exp_TS.sum(axis=1, keepdims=True)
        target_TS = jnp.arange(width) == _slice(slot_sorted, start)[:, None]
        target_T1 = jnp.where(target_TS, scores_TS, 0).sum(axis=1, keepdims=True)
        dscores = _put(dscores, exp_TS / sum_T1 - target_TS, start)
        return dscores, _put(nll, (highest_T1 + jnp.log(sum_T1) - target_T1)[:, 0], start)

    tokens = hidden_ND.shape[0]
    start = (jnp.zeros((tokens + TILE, width), kind), jnp.zeros(tokens + TILE, kind))
    dscores, nll = lax.fori_loop(0, tiles.count, visit, start)
    nll_N = jnp.zeros(tokens, kind).at[order_N].set(nll[:tokens], unique_indices=True)
    dtypes = jnp.zeros(0, hidden_ND.dtype)  # carries the input's dtype to the backward pass
    return nll_N, (hidden_sorted, slab_CSD, bias_CS, dscores, order_N, tiles, dtypes)


def _backward(kept, dnll_N):  # type: ignore[no-untyped-def]
    hidden_sorted, slab_CSD, bias_CS, dscores, order_N, tiles, dtypes = kept
    dscores = (dscores * _padded(dnll_N[order_N])[:, None]).astype(slab_CSD.dtype)
    kind = wide(slab_CSD.dtype)

    def visit(tile: Array, carry: tuple[Array, Array, Array | None]) -> tuple[Array, Array, Array | None]:
        dhidden, dslab, dbias = carry
        start, cluster = tiles.start_M[tile], tiles.cluster_M[tile]
        own_T1 = (jnp.arange(TILE) < tiles.tokens_M[tile])[:, None]
        dscores_TS = jnp.where(own_T1, _slice(dscores, start), 0)
        dhidden = _put(dhidden, dscores_TS @ _at(slab_CSD, cluster), start)
        dwords_SD = jnp.matmul(dscores_TS.T, _slice(hidden_sorted, start), preferred_element_type=kind)
        dwords_SD = (_at(dslab, cluster) + dwords_SD).astype(dslab.dtype)
        dslab = lax.dynamic_update_index_in_dim(dslab, dwords_SD, cluster, 0)
        if dbias is not None:
            added_S = (_at(dbias, cluster) + dscores_TS.sum(axis=0, dtype=kind)).astype(dbias.dtype)
            dbias = lax.dynamic_update_index_in_dim(dbias, added_S, cluster, 0)
        return dhidden, dslab, dbias

    zeros = (
        jnp.zeros_like(hidden_sorted),
        jnp.zeros_like(slab_CSD),
        None if bias_CS is None else jnp.zeros_like(bias_CS),
    )
    dhidden, dslab_CSD, dbias_CS = lax.fori_loop(0, tiles.count, visit, zeros)
    tokens = dnll_N.shape[0]
    dhidden_ND = jnp.zeros_like(dhidden[:tokens]).at[order_N].set(dhidden[:tokens], unique_indices=True)
    return dhidden_ND.astype(dtypes.dtype), dslab_CSD, dbias_CS, None, None, None


in_cluster_nll.defvjp(_forward, _backward)
