"""The softmax within a word's cluster, for tokens of many clusters at once: the costly half of a two-level layer.

Words are stored by cluster in a (C, S, D) slab. The first T tokens of every cluster form one batched product with the
whole slab, which XLA runs on all cores. The remaining tokens of full clusters are cut into further tiles of one cluster
each, and a loop visits the tiles that hold tokens, a few at a time. There are at most N / T + min(C, N) tiles for any
assignment of tokens, so that shapes are static. The gradient is written by hand: d loss / d logits is computed in the
forward pass, where the exponentials are available, so that the slab is read once in each direction.

Our own kernels replace the tiles: on a CPU with a compiler those of `cpp_kernels.py`, and in training on a GPU those of
`cluster_kernels.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls.cpp import CPP
from vocabench.impls.forms import Form
from vocabench.impls.on_jax.ops import cpp_kernels
from vocabench.impls.on_jax.ops.arrays import Array, counts_up_to, reversed_once, varying_as, wide
from vocabench.impls.on_jax.pallas import support
from vocabench.impls.on_jax.pallas.support import KERNELS

_FURTHER = 32  # tokens of a further tile
_TOGETHER = 8  # tiles visited together; a loop over single tiles runs at a third of the speed

# `Form.size` is the number of further tiles that are visited together.
FORMS = tuple(
    Form(
        f"tiles_{together}",
        f"a batched product over the slab, {together} further tiles of full clusters at a time",
        size=together,
    )
    for together in (_TOGETHER, 64)
)


def forms(dtype: str, dim: int) -> tuple[Form, ...]:
    """Return the forms for word vectors (D,) of a spec's `dtype`, the fastest first: our kernels."""
    kernels = ((CPP, cpp_kernels.known(dtype)), (KERNELS, support.known(dtype, dim)))
    return (*(form for form, is_known in kernels if is_known), *FORMS)


# Pairs of a row and a cluster in a tile, when decoding. Reading the cluster takes as long as 18 pairs (two CPU cores,
# D = 512, S = 320).
_LARGE, _SMALL = 32, 8


def _first_places(tokens: int, clusters: int, share: float) -> int:
    """Return T: the mean number of tokens per cluster, rounded up to a power of two."""
    return max(8, 1 << (math.ceil(share * tokens / clusters) - 1).bit_length())


class _Sorted(NamedTuple):
    """A batch sorted by cluster.

    Attributes:
        order_N: Positions in the batch.
        begin_C: The first token of each cluster in the sorted batch.
        end_C: One past the last token of each cluster.
    """

    order_N: Array
    begin_C: Array
    end_C: Array

    @classmethod
    def of(cls, cluster_N: Array, clusters: int) -> _Sorted:
        """Sort tokens by their clusters."""
        order_N = jnp.argsort(cluster_N)
        end_C = counts_up_to(cluster_N[order_N], jnp.arange(clusters, dtype=cluster_N.dtype))
        return cls(order_N, jnp.concatenate([jnp.zeros(1, jnp.int32), end_C[:-1]]), end_C)

    def tokens(self, start_M: Array, cluster_M: Array, places: int) -> Array:
        """Return the tokens (M, T) of tiles that start at these places of the sorted batch; N in unused places."""
        index_MT = start_M[:, None] + jnp.arange(places)
        tokens = self.order_N.shape[0]
        token_MT = self.order_N[jnp.minimum(index_MT, tokens - 1)]
        return jnp.where(index_MT < self.end_C[cluster_M][:, None], token_MT, tokens)

    def first(self, places: int) -> Array:
        """Return the first tokens (C, T) of each cluster; N in unused places."""
        return self.tokens(self.begin_C, jnp.arange(len(self.end_C)), places)

    def further(self, places: int, size: int, together: int) -> _Tiles:
        """Return tiles of `size` for the tokens of each cluster beyond `places`, to be visited `together` at a time."""
        full = min(len(self.end_C), self.order_N.shape[0] // (places + 1))  # an upper bound on clusters that hold more
        begin_C = self.begin_C + places
        return self._cut(begin_C, _ceil(self.end_C - begin_C, size), size, full, together)

    def large_and_small(self, large: int, small: int, together: int) -> tuple[_Tiles, _Tiles]:
        """Return tiles of `large` tokens, and tiles of `small` tokens for small remainders of clusters."""
        clusters, tokens = len(self.end_C), self.order_N.shape[0]
        large_C = _ceil(self.end_C - self.begin_C - small, large)
        begin_C = self.begin_C + large * large_C
        return (
            self._cut(self.begin_C, large_C, large, min(clusters, tokens // (small + 1)), together),
            self._cut(begin_C, _ceil(self.end_C - begin_C, small), small, min(clusters, tokens), together),
        )

    def _cut(self, begin_C: Array, tiles_C: Array, size: int, clusters: int, together: int) -> _Tiles:
        """Cut `tiles_C` tiles from each cluster, starting at `begin_C`. At most `clusters` of them have tiles."""
        tokens = self.order_N.shape[0]
        bound = -(-tokens // size) + clusters + together
        last_C = jnp.cumsum(tiles_C)
        tile_M = jnp.arange(bound, dtype=jnp.int32)
        cluster_M = counts_up_to(last_C, tile_M)
        known_M = jnp.minimum(cluster_M, len(self.end_C) - 1)
        start_M = begin_C[known_M] + (tile_M - (last_C - tiles_C)[known_M]) * size
        token_MT = self.tokens(start_M, known_M, size)
        return _Tiles(jnp.where((tile_M < last_C[-1])[:, None], token_MT, tokens), cluster_M, last_C[-1])


def _ceil(tokens_C: Array, size: int) -> Array:
    """Return how many tiles of `size` hold this many tokens; 0 for negative numbers of tokens."""
    return (jnp.maximum(tokens_C, 0) + size - 1) // size


class _Tiles(NamedTuple):
    """Tiles of tokens.

    Attributes:
        token_MT: Tokens of each tile; N in unused places.
        cluster_M: Cluster of each tile; C in tiles without tokens.
        count: Number of tiles that hold tokens. They are the first ones.
    """

    token_MT: Array
    cluster_M: Array
    count: Array

    def visited(self, together: int, visit: Callable[[Array, Any], Any], start: Any) -> Any:
        """Fold `visit`, which takes the number of a visit and the previous result, over all visits, from `start`."""
        visits = (self.count + together - 1) // together
        return lax.fori_loop(0, visits, visit, varying_as(self.token_MT, start))

    def at(self, visit: Array, together: int) -> tuple[Array, Array]:
        """Return the tokens and clusters of the tiles of a visit."""
        return tuple(lax.dynamic_slice_in_dim(array, visit * together, together) for array in self[:2])  # type: ignore[return-value]


def in_cluster_nll(
    hidden_ND: Array,
    slab_CSD: Array,
    bias_CS: Array | None,
    word_CS: Array,
    cluster_N: Array,
    slot_N: Array,
    form: Form | None,
    share: float = 1.0,
) -> Array:
    """Return the (N,) negative log-likelihoods of targets among the words of their clusters, in nats.

    Args:
        hidden_ND: Hidden vectors.
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: The word in each slot; negative in empty slots.
        cluster_N: Cluster of each target; C for a target in none of the clusters, whose result is 0.
        slot_N: Slot of each target.
        form: One of `forms`.
        share: Expected share of the tokens in these clusters, which determines the size of the first tiles.
    """
    words = slab_CSD, bias_CS, word_CS, cluster_N, slot_N
    if form == CPP:
        return _nll_by_kernels(hidden_ND.astype(slab_CSD.dtype), *words)
    if form == KERNELS:
        # Imported here because not every JAX has Pallas' Triton backend.
        from vocabench.impls.on_jax.pallas import cluster_kernels

        return cluster_kernels.in_cluster_nll(hidden_ND, *words)
    return _in_cluster_nll(hidden_ND, *words, (form or FORMS[0]).size, share)


@partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _in_cluster_nll(hidden_ND, slab_CSD, bias_CS, word_CS, cluster_N, slot_N, together, share):  # type: ignore[no-untyped-def]
    return _forward(hidden_ND, slab_CSD, bias_CS, word_CS, cluster_N, slot_N, together, share)[0]


def pair_scores(
    hidden_ND: Array,
    slab_CSD: Array,
    bias_CS: Array | None,
    word_CS: Array,
    row_P: Array,
    cluster_P: Array,
    form: Form | None,
) -> Array:
    """Return the (P, S) scores of the words of a cluster, for pairs of a row and a cluster; -inf in empty slots.

    Scores for a cluster beyond the last one are meaningless.
    """
    if form == CPP:
        batch = _Sorted.of(cluster_P, len(slab_CSD))
        row_sorted_P = row_P[batch.order_N]
        sorted_PS = cpp_kernels.scores(hidden_ND, row_sorted_P, slab_CSD, bias_CS, word_CS, batch.end_C)
        return jnp.zeros_like(sorted_PS).at[batch.order_N].set(sorted_PS, unique_indices=True)
    added_CS = added_scores(bias_CS, word_CS, wide(slab_CSD.dtype))
    return _pair_products(hidden_ND, slab_CSD, row_P, cluster_P) + added_CS[cluster_P]


def _pair_products(hidden_ND: Array, slab_CSD: Array, row_P: Array, cluster_P: Array) -> Array:
    """Return the (P, S) products of pairs; 0 for a cluster beyond the last one."""
    rows, pairs, width, kind = hidden_ND.shape[0], row_P.shape[0], slab_CSD.shape[1], wide(slab_CSD.dtype)
    cast_ND, batch = hidden_ND.astype(slab_CSD.dtype), _Sorted.of(cluster_P, len(slab_CSD))
    # A visit always reads this many clusters. The pairs of a single row all have different clusters.
    together = 1 if rows == 1 else min(_TOGETHER, max(1, pairs // 16))
    if rows > _SMALL:
        tiles_of_sizes = batch.large_and_small(min(_LARGE, rows), _SMALL, together)
    else:
        tiles_of_sizes = (batch.further(0, rows, together),)

    def products(words_BSD: Array, hidden_BTD: Array) -> Array:
        if rows == 1:
            return jnp.einsum("btd,bsd->bts", hidden_BTD, words_BSD, preferred_element_type=kind)
        # Words first is a quarter faster for tiles of 8. The barrier keeps XLA from merging the transposition.
        scores_BST = jnp.einsum("bsd,btd->bst", words_BSD, hidden_BTD, preferred_element_type=kind)
        return jnp.swapaxes(lax.optimization_barrier(scores_BST), 1, 2)

    scores_PS = jnp.zeros((pairs, width), kind)
    for tiles in tiles_of_sizes:

        def visit(number: Array, scores_PS: Array, tiles: _Tiles = tiles) -> Array:
            pair_BT, cluster_B = tiles.at(number, together)
            scores_BTS = products(slab_CSD[cluster_B], cast_ND[row_P[pair_BT]])
            return scores_PS.at[pair_BT].set(scores_BTS, mode="drop")

        scores_PS = tiles.visited(together, visit, scores_PS)
    return scores_PS


def added_scores(bias_CS: Array | None, word_CS: Array, kind: jnp.dtype) -> Array:
    """Return (C, S) the term to add to each score: the bias or 0, and -inf in empty slots."""
    return jnp.where(word_CS < 0, -jnp.inf, jnp.zeros((), kind) if bias_CS is None else bias_CS.astype(kind))


def _nll(scores_CST: Array, slot_CT: Array) -> tuple[Array, Array]:
    """Return the (C, T) nll of the words at `slot_CT` within their cluster, and d nll / d scores (C, S, T)."""
    highest_C1T = scores_CST.max(axis=1, keepdims=True)
    exp_CST = jnp.exp(scores_CST - highest_C1T)
    sum_C1T = exp_CST.sum(axis=1, keepdims=True)
    is_target_CST = lax.broadcasted_iota(jnp.int32, scores_CST.shape, 1) == slot_CT[:, None]
    target_C1T = jnp.where(is_target_CST, scores_CST, 0).sum(axis=1, keepdims=True)
    return (highest_C1T + jnp.log(sum_C1T) - target_C1T)[:, 0], exp_CST / sum_C1T - is_target_CST


def _forward(hidden_ND, slab_CSD, bias_CS, word_CS, cluster_N, slot_N, together, share):  # type: ignore[no-untyped-def]
    clusters, width, _ = slab_CSD.shape
    tokens, kind = hidden_ND.shape[0], wide(slab_CSD.dtype)
    cast_ND = hidden_ND.astype(slab_CSD.dtype)
    batch = _Sorted.of(cluster_N, clusters)
    places = _first_places(tokens, clusters, share)
    added_CS = added_scores(bias_CS, word_CS, kind)

    def nll_of_tiles(words_CSD: Array, added_CS: Array, token_CT: Array) -> tuple[Array, Array]:
        # An unused place reads the last token, and its result is dropped.
        hidden_CTD, slot_CT = cast_ND[token_CT], slot_N[token_CT]
        scores_CST = jnp.einsum("csd,ctd->cst", words_CSD, hidden_CTD, preferred_element_type=kind)
        return _nll(scores_CST + added_CS[:, :, None], slot_CT)

    token_CT = batch.first(places)
    nll_CT, dscores_CST = nll_of_tiles(slab_CSD, added_CS, token_CT)
    tiles = batch.further(places, _FURTHER, together)

    def visit(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        dscores_NS, nll_N = carry
        token_BT, cluster_B = tiles.at(number, together)
        nll_BT, dscores_BST = nll_of_tiles(slab_CSD[cluster_B], added_CS[cluster_B], token_BT)
        dscores_NS = dscores_NS.at[token_BT].set(jnp.swapaxes(dscores_BST, 1, 2), mode="drop")
        return dscores_NS, nll_N.at[token_BT].set(nll_BT, mode="drop")

    start = (jnp.zeros((tokens, width), kind), jnp.zeros(tokens, kind).at[token_CT].set(nll_CT, mode="drop"))
    dscores_NS, nll_N = tiles.visited(together, visit, start)
    return nll_N, (hidden_ND, slab_CSD, bias_CS, dscores_CST, dscores_NS, token_CT, tiles)


def _backward(together, share, kept, dnll_N):  # type: ignore[no-untyped-def]
    hidden_ND, slab_CSD, bias_CS, dscores_CST, dscores_NS, token_CT, tiles = kept
    tokens, kind, narrow = dnll_N.shape[0], wide(slab_CSD.dtype), slab_CSD.dtype
    cast_ND = hidden_ND.astype(narrow)

    def weights(token_CT: Array) -> Array:
        return jnp.where(token_CT < tokens, dnll_N[token_CT], 0)

    dscores_CST = jnp.where((token_CT < tokens)[:, None], dscores_CST * weights(token_CT)[:, None], 0)
    dbias_CS = None if bias_CS is None else dscores_CST.sum(axis=2)
    dscores_CST = dscores_CST.astype(narrow)
    # The barrier makes XLA store the transposed array. Reading it transposed within the product takes twice as long.
    dscores_CTS = lax.optimization_barrier(jnp.swapaxes(dscores_CST, 1, 2))
    dhidden_CTD = jnp.einsum("cts,csd->ctd", dscores_CTS, slab_CSD)
    dhidden_ND = jnp.zeros_like(cast_ND).at[token_CT].set(dhidden_CTD, mode="drop")
    dslab_CSD = jnp.einsum("cst,ctd->csd", dscores_CST, cast_ND[token_CT], preferred_element_type=kind).astype(narrow)

    def visit(number: Array, carry: tuple[Array, Array, Array | None]) -> tuple[Array, Array, Array | None]:
        dhidden_ND, dslab_CSD, dbias_CS = carry
        token_BT, cluster_B = tiles.at(number, together)
        dscores_BTS = dscores_NS[token_BT] * weights(token_BT)[:, :, None]
        if dbias_CS is not None:
            dbias_CS = dbias_CS.at[cluster_B].add(dscores_BTS.sum(axis=1), mode="drop")
        dscores_BTS = dscores_BTS.astype(narrow)
        dhidden_BTD = jnp.einsum("bts,bsd->btd", dscores_BTS, slab_CSD[cluster_B])
        dwords_BSD = jnp.einsum("bts,btd->bsd", dscores_BTS, cast_ND[token_BT], preferred_element_type=kind)
        dslab_CSD = dslab_CSD.at[cluster_B].add(dwords_BSD.astype(narrow), mode="drop")
        return dhidden_ND.at[token_BT].set(dhidden_BTD, mode="drop"), dslab_CSD, dbias_CS

    start = (dhidden_ND, dslab_CSD, dbias_CS)
    dhidden_ND, dslab_CSD, dbias_CS = tiles.visited(together, visit, start)
    dbias_CS = None if bias_CS is None else dbias_CS.astype(bias_CS.dtype)
    gradients = dhidden_ND.astype(hidden_ND.dtype), dslab_CSD, dbias_CS
    return *reversed_once(gradients), None, None, None


_in_cluster_nll.defvjp(_forward, _backward)


@jax.custom_vjp
def _nll_by_kernels(hidden_ND, slab_CSD, bias_CS, word_CS, cluster_N, slot_N):  # type: ignore[no-untyped-def]
    return _by_kernels(hidden_ND, slab_CSD, bias_CS, word_CS, cluster_N, slot_N, differentiated=False)[0]


def _by_kernels(hidden_ND, slab_CSD, bias_CS, word_CS, cluster_N, slot_N, *, differentiated):  # type: ignore[no-untyped-def]
    batch = _Sorted.of(cluster_N, len(slab_CSD))
    tokens, words = (hidden_ND, batch.order_N, slot_N[batch.order_N]), (slab_CSD, bias_CS, word_CS)
    losses_N, excess_NS, dhidden_ND = cpp_kernels.losses(*tokens, *words, batch.end_C, differentiated=differentiated)
    nll_N = jnp.zeros_like(losses_N).at[batch.order_N].set(losses_N, unique_indices=True)
    return nll_N, (hidden_ND, *words, batch, excess_NS, dhidden_ND)


def _forward_by_kernels(hidden_ND, slab_CSD, bias_CS, word_CS, cluster_N, slot_N):  # type: ignore[no-untyped-def]
    return _by_kernels(hidden_ND, slab_CSD, bias_CS, word_CS, cluster_N, slot_N, differentiated=True)


def _backward_by_kernels(kept, dnll_N):  # type: ignore[no-untyped-def]
    hidden_ND, slab_CSD, bias_CS, word_CS, batch, excess_NS, dhidden_ND = kept
    tokens, words = (dnll_N[batch.order_N], hidden_ND, batch.order_N), (slab_CSD, bias_CS, word_CS)
    dslab_CSD, dbias_CS = cpp_kernels.gradients(excess_NS, *tokens, *words, batch.end_C)
    return dhidden_ND * dnll_N[:, None], dslab_CSD, dbias_CS, None, None, None


_nll_by_kernels.defvjp(_forward_by_kernels, _backward_by_kernels)
