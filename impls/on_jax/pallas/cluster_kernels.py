"""The softmax within a word's cluster by Pallas kernels: few launches for a whole layer, and each word is read once.

They follow `impls/on_torch/triton/cluster_kernels.py`. In the forward pass a program takes a tile of a cluster's tokens
through the cluster's words. While these are in on-chip memory, it sums the exponentials and the words weighted with
them, which give the gradient with respect to the hidden vectors; the backward pass only scales that. The scores (N, S),
small beside the words, are kept: the backward pass computes the gradient with respect to the words from them and reads
no word again. Each sum is computed by one program in a fixed order, without atomic additions, so that results are
deterministic. Empty slots and clusters without tokens are not read; their gradients are written as zeros.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from vocabench.impls.on_jax.ops.arrays import Array
from vocabench.impls.on_jax.pallas.support import How, call, iota, loop, up

_TOKENS = 16  # tokens of a tile; a cluster has a dozen or fewer
_BLOCKS = 8  # blocks of words that a program multiplies with one tile of tokens
_PROGRAMS = 32  # programs of a cluster, which share the tiles of its tokens
_SORTED = 1024  # tokens that the sort reads at a time


class _Tiles(NamedTuple):
    """The sizes of a kernel's tiles, and its launch parameters.

    Attributes:
        words: Words of a tile, a power of two.
        columns: Columns of a tile, a power of two.
        warps: Warps of a program.
        stages: Stages of software pipelining.
    """

    words: int
    columns: int
    warps: int
    stages: int

    @classmethod
    def forward(cls, slab_CSD: Array) -> _Tiles:
        """Return tiles with whole vectors.

        Wide vectors leave room for only 16 words, the fewest of a tensor core, and for no second stage.
        """
        columns = max(16, pl.next_power_of_2(slab_CSD.shape[2]))
        words = min(64, 2**15 // (columns * slab_CSD.dtype.itemsize))
        return cls(max(16, words), columns, warps=4, stages=3 if words >= 16 else 1)

    @classmethod
    def backward(cls, slab_CSD: Array, tf32: bool) -> _Tiles:
        """Return tiles for the gradient with respect to the words."""
        half = slab_CSD.dtype.itemsize == 2
        columns = min(512 if half else 256 if tf32 else 128, max(16, pl.next_power_of_2(slab_CSD.shape[2])))
        return cls(16 if half or tf32 else 32, columns, warps=4, stages=3)

    def call(self, kernel: Any, out: Any, grid: tuple[int, ...], how: How) -> Any:
        """Return `kernel` with tiles of this size, as an operation that returns arrays like `out`."""
        return call(partial(kernel, tiles=self, tf32=how.tf32), out, grid, self.warps, self.stages, how.interpret)


class _Tile(NamedTuple):
    """Tokens of one cluster in a kernel; N in places that are not `real`."""

    token_T: Array
    real_T: Array

    def loaded(self, vectors_NX: Any, x_X: Array, real_X: Array, other: float = 0.0) -> Array:
        """Return columns (T, X) of the tokens' vectors, and `other` outside of them."""
        at_TX, real_TX = self._at(x_X, real_X)
        return plgpu.load(vectors_NX.at[at_TX], mask=real_TX, other=other)

    def store(self, vectors_NX: Any, x_X: Array, real_X: Array, values_TX: Array) -> None:
        """Store columns (T, X) of the tokens' vectors."""
        at_TX, real_TX = self._at(x_X, real_X)
        plgpu.store(vectors_NX.at[at_TX], values_TX, mask=real_TX)

    def _at(self, x_X: Array, real_X: Array) -> tuple[tuple[Array, Array], Array]:
        return (self.token_T[:, None], x_X[None, :]), self.real_T[:, None] & real_X[None, :]

    def values(self, values_N: Any, other: float) -> Array:
        """Return the values (T,) of the tokens, and `other` in places that are not real."""
        return plgpu.load(values_N.at[self.token_T], mask=self.real_T, other=other)


class _Batch(NamedTuple):
    """A batch sorted by cluster: arrays, or references to them in a kernel.

    Attributes:
        order_N: Positions in the batch.
        slot_N: Slot of each target, not sorted.
        begin_C: First sorted token of each cluster, with one more entry for the end.
        size_C: Number of words of each cluster, which are in its first slots.
    """

    order_N: Any
    slot_N: Any
    begin_C: Any
    size_C: Any

    @classmethod
    def of(cls, cluster_N: Array, slot_N: Array, word_CS: Array, interpret: bool) -> _Batch:
        """Sort tokens by their clusters."""
        tokens, programs = len(cluster_N), len(word_CS) + 1
        out = [jax.ShapeDtypeStruct((size,), jnp.int32) for size in (tokens, programs)]
        sort = call(_sort_kernel, out, (programs,), 4, 1, interpret)
        order_N, begin_C = sort(cluster_N.astype(jnp.int32))
        return cls(order_N, slot_N.astype(jnp.int32), begin_C, (word_CS >= 0).sum(axis=1, dtype=jnp.int32))

    def tile(self, first: Array, end: Array) -> _Tile:
        """Return the sorted tokens from `first` on, before `end`, in a kernel."""
        place_T = first + iota(_TOKENS)
        real_T = place_T < end
        tokens = self.order_N.shape[0]
        return _Tile(plgpu.load(self.order_N.at[place_T], mask=real_T, other=tokens), real_T)


class _Kept(NamedTuple):
    """The results that the forward pass keeps for the backward pass.

    Attributes:
        log_sum_N: Log-sum-exp of the scores.
        scores_NS: Scores of the words of the cluster.
        dhidden_ND: Gradients of the losses with respect to the hidden vectors.
    """

    log_sum_N: Array
    scores_NS: Array
    dhidden_ND: Array


def _sort_kernel(cluster_N, order_N, begin_C):  # type: ignore[no-untyped-def]
    """Write the tokens of each cluster in order, those of no cluster last, and where they begin."""
    cluster, tokens = pl.program_id(0), cluster_N.shape[0]

    def read(number: Array) -> tuple[Array, Array]:
        token_B = number * _SORTED + iota(_SORTED)
        return token_B, plgpu.load(cluster_N.at[token_B], mask=token_B < tokens, other=begin_C.shape[0])

    def count(number: Array, before: Array) -> Array:
        return before + (read(number)[1] < cluster).sum(dtype=jnp.int32)

    def place(number: Array, before: Array) -> Array:
        token_B, cluster_B = read(number)
        is_member_B = cluster_B == cluster
        one_B = is_member_B.astype(jnp.int32)
        place_B = jnp.where(is_member_B, before + jnp.cumsum(one_B, dtype=jnp.int32) - 1, tokens)
        plgpu.store(order_N.at[place_B], token_B, mask=is_member_B)
        return before + one_B.sum(dtype=jnp.int32)

    blocks = np.int32(pl.cdiv(tokens, _SORTED))
    before = loop(blocks, count, jnp.int32(0))
    begin_C[cluster] = before
    loop(blocks, place, before)


def _forward_kernel(hidden_ND, slab_CSD, bias_CS, batch, nll_N, *kept, tiles, tf32):  # type: ignore[no-untyped-def]
    cluster = pl.program_id(0)
    begin, end, size = batch.begin_C[cluster], batch.begin_C[cluster + 1], batch.size_C[cluster]
    first, step = begin + pl.program_id(1) * _TOKENS, _PROGRAMS * _TOKENS
    d_D = iota(tiles.columns)
    real_D = d_D < slab_CSD.shape[2]

    def words(slot_B: Array, real_B: Array) -> Array:
        at_BD, real_BD = (cluster, slot_B[:, None], d_D[None, :]), real_B[:, None] & real_D[None, :]
        return plgpu.load(slab_CSD.at[at_BD], mask=real_BD, other=0.0)

    def added(slot_B: Array, real_B: Array) -> Array:
        """Return the biases, and -inf in empty slots."""
        if bias_CS is None:
            return jnp.where(real_B, 0.0, -jnp.inf)
        return plgpu.load(bias_CS.at[cluster, slot_B], mask=real_B, other=-jnp.inf).astype(jnp.float32)

    def of_tile(number: Array, none: None) -> None:
        tile = batch.tile(first + number * step, end)
        slot_T, hidden_TD = tile.values(batch.slot_N, 0), tile.loaded(hidden_ND, d_D, real_D)

        def of_words(number: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
            highest_T, others_T, target_T, *dhidden = sums
            slot_B = number * tiles.words + iota(tiles.words)
            real_B = slot_B < size
            words_BD = words(slot_B, real_B)
            scores_TB = plgpu.dot(hidden_TD, words_BD, trans_b=True, allow_tf32=tf32) + added(slot_B, real_B)[None, :]
            is_target_TB = slot_T[:, None] == slot_B[None, :]
            # The first slot of a block holds a word, so the maximum is finite.
            higher_T = jnp.maximum(highest_T, scores_TB.max(axis=1))
            still_T = jnp.exp(highest_T - higher_T)
            weights_TB = jnp.where(is_target_TB, 0.0, jnp.exp(scores_TB - higher_T[:, None]))
            others_T = others_T * still_T + weights_TB.sum(axis=1)
            target_T = target_T + jnp.where(is_target_TB, scores_TB, 0.0).sum(axis=1)
            if kept:
                tile.store(_Kept(*kept).scores_NS, slot_B, real_B, scores_TB)
                weighed_TD = plgpu.dot(weights_TB.astype(words_BD.dtype), words_BD, allow_tf32=tf32)
                dhidden = [dhidden[0] * still_T[:, None] + weighed_TD]
            return higher_T, others_T, target_T, *dhidden

        zero_T = jnp.zeros(_TOKENS, jnp.float32)
        dhidden = [jnp.zeros((_TOKENS, tiles.columns), jnp.float32)] if kept else []
        start = (zero_T - jnp.inf, zero_T, zero_T, *dhidden)  # others_T: sum of all exponentials except the target's
        highest_T, others_T, target_T, *dhidden = loop(up(size, tiles.words), of_words, start)
        sum_T = others_T + jnp.exp(target_T - highest_T)
        log_sum_T = highest_T + jnp.log(sum_T)
        plgpu.store(nll_N.at[tile.token_T], log_sum_T - target_T, mask=tile.real_T)
        if kept:
            log_sum_N, _, dhidden_ND = kept
            plgpu.store(log_sum_N.at[tile.token_T], log_sum_T, mask=tile.real_T)
            target_TD = words(slot_T, tile.real_T).astype(jnp.float32)
            # The weight of the target is its probability minus one: minus the probability of all other words.
            dhidden_TD = (dhidden[0] - others_T[:, None] * target_TD) / sum_T[:, None]
            tile.store(dhidden_ND, d_D, real_D, dhidden_TD)

    loop(up(jnp.maximum(end - first, 0), step), of_tile, None)


def _slab_kernel(hidden_ND, batch, log_sum_N, scores_NS, dnll_N, dslab_CSD, *dbias_CS, tiles, tf32):  # type: ignore[no-untyped-def]
    """Compute the gradient of a block of a cluster's words from the cluster's tokens.

    If the tokens are a single tile, as in most clusters, a program reads them once for several blocks, and the programs
    of the other blocks do nothing.
    """
    cluster, block, part, blocks = *(pl.program_id(axis) for axis in range(3)), pl.num_programs(1)
    _, width, dim = dslab_CSD.shape
    d_D = part * tiles.columns + iota(tiles.columns)
    real_D = d_D < dim
    begin, end, size = batch.begin_C[cluster], batch.begin_C[cluster + 1], batch.size_C[cluster]

    def slots(block: Array) -> Array:
        return block * tiles.words + iota(tiles.words)

    def read(first: Array) -> tuple[_Tile, Array, Array, Array, Array]:
        tile = batch.tile(first, end)
        values = tile.values(batch.slot_N, -1), tile.values(log_sum_N, 0.0), tile.values(dnll_N, 0.0)
        return tile, *values, tile.loaded(hidden_ND, d_D, real_D)

    def gradients(tokens: tuple[_Tile, Array, Array, Array, Array], slot_B: Array) -> tuple[Array, Array]:
        tile, slot_T, log_sum_T, dnll_T, hidden_TD = tokens
        scores_TB = tile.loaded(scores_NS, slot_B, slot_B < size, -jnp.inf)
        is_target_TB = slot_T[:, None] == slot_B[None, :]
        probability_TB = jnp.exp(scores_TB - log_sum_T[:, None])
        dscores_TB = (probability_TB - is_target_TB.astype(jnp.float32)) * dnll_T[:, None]
        dwords_BD = plgpu.dot(dscores_TB.astype(hidden_TD.dtype), hidden_TD, trans_a=True, allow_tf32=tf32)
        return dwords_BD, dscores_TB.sum(axis=0)

    def store(slot_B: Array, dwords_BD: Array, dadded_B: Array) -> None:
        at_BD, real_B = (cluster, slot_B[:, None], d_D[None, :]), slot_B < width
        plgpu.store(dslab_CSD.at[at_BD], dwords_BD.astype(dslab_CSD.dtype), mask=real_B[:, None] & real_D[None, :])
        for dbias in dbias_CS:
            here_B = real_B & (part == 0)
            plgpu.store(dbias.at[cluster, slot_B], dadded_B.astype(dbias.dtype), mask=here_B)

    def of_one_tile() -> None:
        tokens = read(begin)

        def of_block(number: Array, none: None) -> None:
            slot_B = slots(block + number)
            store(slot_B, *gradients(tokens, slot_B))

        loop(jnp.minimum(_BLOCKS, blocks - block), of_block, None)

    def of_tiles() -> None:
        slot_B = slots(block)

        def of_tile(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            dwords_BD, dadded_B = gradients(read(begin + number * _TOKENS), slot_B)
            return sums[0] + dwords_BD, sums[1] + dadded_B

        start = jnp.zeros((tiles.words, tiles.columns), jnp.float32), jnp.zeros(tiles.words, jnp.float32)
        count = jnp.where(block * tiles.words < size, up(end - begin, _TOKENS), 0)
        store(slot_B, *loop(count, of_tile, start))

    are_one_tile = end - begin <= _TOKENS
    pl.when(are_one_tile & (lax.rem(block, np.int32(_BLOCKS)) == 0))(of_one_tile)
    pl.when(~are_one_tile)(of_tiles)


def in_cluster_nll(
    hidden_ND: Array,
    slab_CSD: Array,
    bias_CS: Array | None,
    word_CS: Array,
    cluster_N: Array,
    slot_N: Array,
    interpret: bool = False,
) -> Array:
    """Return the same as `cluster_softmax.in_cluster_nll`, in float32 and half precision.

    Args:
        hidden_ND: Hidden vectors.
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: The word in each slot; negative in empty slots.
        cluster_N: Cluster of each target; C for a target in none of the clusters.
        slot_N: Slot of each target.
        interpret: As in `How`.
    """
    how = How.asked_for(interpret)
    batch = _Batch.of(cluster_N, slot_N, word_CS, interpret)
    nll_N: Any = _nll(hidden_ND, slab_CSD, bias_CS, batch, how)
    return jnp.where(cluster_N < len(slab_CSD), nll_N, 0)


def _outputs(hidden_ND: Array, slab_CSD: Array, bias_CS: Array | None, batch: _Batch, how: How, keep: bool) -> Any:
    (clusters, width, dim), tokens = slab_CSD.shape, len(hidden_ND)
    shapes = [(tokens,), (tokens,), (tokens, width), (tokens, dim)] if keep else [(tokens,)]
    out = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    call = _Tiles.forward(slab_CSD).call(_forward_kernel, out, (clusters, _PROGRAMS), how)
    return call(hidden_ND.astype(slab_CSD.dtype), slab_CSD, bias_CS, batch)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _nll(hidden_ND, slab_CSD, bias_CS, batch, how):  # type: ignore[no-untyped-def]
    return _outputs(hidden_ND, slab_CSD, bias_CS, batch, how, keep=False)[0]


def _forward(hidden_ND, slab_CSD, bias_CS, batch, how):  # type: ignore[no-untyped-def]
    nll_N, *kept = _outputs(hidden_ND, slab_CSD, bias_CS, batch, how, keep=True)
    return nll_N, (hidden_ND, slab_CSD, bias_CS, batch, _Kept(*kept))


def _backward(how, inputs, dnll_N):  # type: ignore[no-untyped-def]
    hidden_ND, slab_CSD, bias_CS, batch, kept = inputs
    clusters, width, dim = slab_CSD.shape
    tiles = _Tiles.backward(slab_CSD, how.tf32)
    trained = [slab_CSD] if bias_CS is None else [slab_CSD, bias_CS]
    grid = clusters, pl.cdiv(width, tiles.words), pl.cdiv(dim, tiles.columns)
    call = tiles.call(_slab_kernel, [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in trained], grid, how)
    dslab_CSD, *dbias = call(hidden_ND.astype(slab_CSD.dtype), batch, kept.log_sum_N, kept.scores_NS, dnll_N)
    # No kernel has written a gradient for tokens that belong to no cluster.
    dhidden_ND = jnp.where(dnll_N[:, None] == 0, 0, kept.dhidden_ND * dnll_N[:, None])
    return dhidden_ND.astype(hidden_ND.dtype), dslab_CSD, dbias[0] if dbias else None, None


_nll.defvjp(_forward, _backward)
