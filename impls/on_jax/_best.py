"""The k best of scored words, exact to the order of ties, and rows that need more work than the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from impls.on_jax._layer import Array

Found = TypeVar("Found", bound=tuple[Array, ...])

_GROUP = 8  # rows solved at a time


def top_k(values_NX: Array, k: int) -> tuple[Array, Array]:
    """`lax.top_k`, kept from being merged with another or with a slice of it: XLA would make one full sort of them."""
    best_NK, place_NK = lax.optimization_barrier(lax.top_k(values_NX, k))
    return best_NK, place_NK


def best_by_id(values_NX: Array, ids_NX: Array, k: int) -> tuple[Array, Array]:
    """The k best of each row's candidates, in any order, with their ids: best first, ties by lower id.

    `top_k` prefers the first of equals, so only the rows where some are equal must be sorted by id.
    """
    best_NJ, place_NJ = top_k(values_NX, min(k + 1, values_NX.shape[1]))

    def by_id(rows_R: Array) -> tuple[Array, Array]:
        ids_RX, values_RX = lax.sort((ids_NX[rows_R], values_NX[rows_R]), dimension=1, num_keys=1)
        best_RK, place_RK = top_k(values_RX, k)
        return best_RK, jnp.take_along_axis(ids_RX, place_RK, axis=1)

    found = best_NJ[:, :k], jnp.take_along_axis(ids_NX, place_NJ[:, :k], axis=1)
    return settle(found, (best_NJ[:, 1:] == best_NJ[:, :-1]).any(axis=1), by_id)


def settle(found: Found, open_N: Array, solve: Callable[[Array], Found]) -> Found:
    """`found` with the rows of `open_N` replaced by what `solve` gives for their numbers, a few at a time.

    Args:
        found: Arrays (N, ...).
        open_N: True where a row is not settled.
        solve: From row numbers (R,), beyond the last row where there are fewer, to arrays (R, ...).
    """
    rows = len(open_N)
    group = min(_GROUP, rows)
    if rows == group:  # in a loop XLA would see that there is but one group, and solve it before it knows whether to

        def all_solved() -> Found:
            better = solve(jnp.arange(rows))
            return jax.tree.map(
                lambda old, new: jnp.where(_like(open_N, old), new.astype(old.dtype), old), found, better
            )

        return lax.cond(open_N.any(), all_solved, lambda: found)

    def body(state: tuple[Found, Array]) -> tuple[Found, Array]:
        found, open_N = state
        (rows_R,) = jnp.nonzero(open_N, size=group, fill_value=rows)
        better = solve(rows_R)
        merged = jax.tree.map(lambda old, new: old.at[rows_R].set(new.astype(old.dtype), mode="drop"), found, better)
        return merged, open_N.at[rows_R].set(False, mode="drop")

    return lax.while_loop(lambda state: state[1].any(), body, (found, open_N))[0]


def _like(open_N: Array, array: Array) -> Array:
    """`open_N` with the dimensions of `array`."""
    return open_N.reshape(-1, *[1] * (array.ndim - 1))
