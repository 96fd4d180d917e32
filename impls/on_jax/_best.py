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


def best_by_id(values_NX: Array, ids_NX: Array, k: int) -> tuple[Array, Array]:
    """The k best of each row's candidates, in any order, with their ids: best first, ties by lower id.

    `top_k` prefers the first of equals, so only where some are equal must the candidates be sorted by id.
    """

    def best(values_NX: Array, ids_NX: Array) -> tuple[Array, Array]:
        best_NK, place_NK = lax.top_k(values_NX, k)
        return best_NK, jnp.take_along_axis(ids_NX, place_NK, axis=1)

    def sorted_best(values_NX: Array, ids_NX: Array) -> tuple[Array, Array]:
        ids_NX, values_NX = lax.sort((ids_NX, values_NX), dimension=1, num_keys=1)
        return best(values_NX, ids_NX)

    further = lax.top_k(values_NX, min(k + 1, values_NX.shape[1]))[0]
    return lax.cond((further[:, 1:] == further[:, :-1]).any(), sorted_best, best, values_NX, ids_NX)


def settle(found: Found, open_N: Array, solve: Callable[[Array], Found]) -> Found:
    """`found` with the rows of `open_N` replaced by what `solve` gives for their numbers, a few at a time.

    Args:
        found: Arrays (N, ...).
        open_N: True where a row is not settled.
        solve: From row numbers (R,), beyond the last row where there are fewer, to arrays (R, ...).
    """
    rows = len(open_N)
    group = min(_GROUP, rows)

    def body(state: tuple[Found, Array]) -> tuple[Found, Array]:
        found, open_N = state
        (rows_R,) = jnp.nonzero(open_N, size=group, fill_value=rows)
        better = solve(rows_R)
        merged = jax.tree.map(lambda old, new: old.at[rows_R].set(new.astype(old.dtype), mode="drop"), found, better)
        return merged, open_N.at[rows_R].set(False, mode="drop")

    return lax.while_loop(lambda state: state[1].any(), body, (found, open_N))[0]
