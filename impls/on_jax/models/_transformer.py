"""The transformer decoder of `impls/models/recognizer.py` in JAX: all units in parallel, or one by one.

Shape letters: B utterances, S frames, T units, L blocks, D width, R decoded rows, W rows of an utterance, X longest
transcript.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from vocabench.impls.models.recognizer import RecognizerConfig, sinusoids
from vocabench.impls.on_jax.models._blocks import attend, blocks_of, feed_forward, linear, norm, run
from vocabench.impls.on_jax.ops.arrays import Array, Tree

Kept = TypeVar("Kept")


class Memory(NamedTuple):
    """Keys and values of the encoder's frames for each block, and the mask of real frames."""

    key_LBSD: Array
    value_LBSD: Array
    real_BS: Array


class Cache(NamedTuple):
    """Keys and values of the units so far for each block."""

    key_LRXD: Array
    value_LRXD: Array

    @classmethod
    def empty(cls, config: RecognizerConfig, rows: int, longest: int, dtype: jnp.dtype) -> Cache:
        """Return a cache with room for `longest` units of each row."""
        shape = (config.decoder_layers, rows, longest, config.dim)
        return cls(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def at(self, rows_R: Array) -> Cache:
        """Return the cache of the given rows."""
        return Cache(*(array[:, rows_R] for array in self))


def remember(params: Tree, frames_BSD: Array, real_BS: Array) -> Memory:
    """Return the frames' keys and values for all blocks, which do not depend on units."""
    blocks = blocks_of(params, "decoder")

    def product(part: str) -> Array:
        bias_L11D = blocks[f"cross.{part}_bias"][:, None, None]
        return jnp.einsum("bsd,led->lbse", frames_BSD, blocks[f"cross.{part}_weight"]) + bias_L11D

    return Memory(product("key"), product("value"), real_BS)


def decode(params: Tree, config: RecognizerConfig, memory: Memory, inputs_BT: Array) -> Array:
    """Return the output layer's hidden vectors (B, T, D) after each unit."""
    steps = inputs_BT.shape[1]
    x_BTD = _embed(params, config, inputs_BT, _positions(steps, config))
    before_TT = jnp.tri(steps, dtype=bool)

    def block(x_BTD: Array, inputs: tuple[Tree, Array, Array]) -> tuple[Array, None]:
        def self_attention(query_BTD: Array, key_BTD: Array, value_BTD: Array) -> tuple[Array, None]:
            return attend(query_BTD, key_BTD, value_BTD, before_TT, config.heads), None

        params, key_BSD, value_BSD = inputs
        return _block(params, config, x_BTD, (key_BSD, value_BSD, memory.real_BS), self_attention)

    x_BTD = run(block, x_BTD, (blocks_of(params, "decoder"), memory.key_LBSD, memory.value_LBSD))
    return norm(params, "decoder.norm", x_BTD)


def decode_next(
    params: Tree, config: RecognizerConfig, memory: Memory, cache: Cache, inputs_R: Array, position: Array
) -> tuple[Array, Cache]:
    """Return the output layer's hidden vectors (R, D) after one more unit of each row, and the new cache.

    Rows of the same utterance are adjacent. They attend to its frames like the units in `decode`.
    """
    rows, longest = cache.key_LRXD.shape[1:3]
    inputs_BW = inputs_R.reshape(len(memory.real_BS), -1)
    x_BWD = _embed(params, config, inputs_BW, _positions(longest, config)[position])
    before_X = jnp.arange(longest) <= position

    def block(carry: tuple[Array, Cache], inputs: tuple[Array, Tree, Array, Array]) -> tuple[tuple[Array, Cache], None]:
        number, params, key_BSD, value_BSD = inputs
        x_BWD, cache = carry

        def self_attention(query_BWD: Array, key_BWD: Array, value_BWD: Array) -> tuple[Array, Cache]:
            # The carry of a scan is updated in place.
            place, added = (number, 0, position, 0), (1, rows, 1, config.dim)
            new = Cache(
                lax.dynamic_update_slice(cache.key_LRXD, key_BWD.reshape(added), place),
                lax.dynamic_update_slice(cache.value_LRXD, value_BWD.reshape(added), place),
            )
            query_R1D = query_BWD.reshape(rows, 1, config.dim)
            context_R1D = attend(query_R1D, new.key_LRXD[number], new.value_LRXD[number], before_X, config.heads)
            return context_R1D.reshape(query_BWD.shape), new

        return _block(params, config, x_BWD, (key_BSD, value_BSD, memory.real_BS), self_attention), None

    numbers_L = jnp.arange(config.decoder_layers)
    blocks = (numbers_L, blocks_of(params, "decoder"), memory.key_LBSD, memory.value_LBSD)
    (x_BWD, cache), _ = lax.scan(block, (x_BWD, cache), blocks)
    return norm(params, "decoder.norm", x_BWD).reshape(rows, config.dim), cache


def _block(
    params: Tree,
    config: RecognizerConfig,
    x_BTD: Array,
    frames: tuple[Array, Array, Array],
    self_attention: Callable[[Array, Array, Array], tuple[Array, Kept]],
) -> tuple[Array, Kept]:
    """Apply a block, and return its output and the second result of `self_attention`.

    Args:
        params: Parameters of the block.
        config: Sizes of the network.
        x_BTD: Input of the block.
        frames: Keys, values and mask of the encoder's frames.
        self_attention: Function of queries, keys and values (B, T, D).
    """
    normed_BTD = norm(params, "self.norm", x_BTD)
    context_BTD, kept = self_attention(*(linear(params, f"self.{part}", normed_BTD) for part in _PARTS))
    x_BTD += linear(params, "self.out", context_BTD)
    query_BTD = linear(params, "cross.query", norm(params, "cross.norm", x_BTD))
    key_BSD, value_BSD, real_BS = frames
    context_BTD = attend(query_BTD, key_BSD, value_BSD, real_BS[:, None, None], config.heads)
    x_BTD += linear(params, "cross.out", context_BTD)
    return x_BTD + feed_forward(params, "feed", x_BTD, jax.nn.relu), kept


_PARTS = ("query", "key", "value")


def _positions(count: int, config: RecognizerConfig) -> Array:
    """Return the position vectors (T, D) of the first places."""
    return jnp.asarray(sinusoids(np.arange(count), config.dim))


def _embed(params: Tree, config: RecognizerConfig, inputs_BT: Array, positions_TD: Array) -> Array:
    vectors_BTD = params["embedding"][inputs_BT] * config.dim**0.5
    return vectors_BTD + positions_TD.astype(vectors_BTD.dtype)
