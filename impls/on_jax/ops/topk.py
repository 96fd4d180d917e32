"""The k best of scored words, exact to the order of ties, and rows that need more work than the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls.on_jax.layer import Array

Found = TypeVar("Found", bound=tuple[Array, ...])

_GROUP = 8  # rows solved at a time
_SPARE = 22  # words looked for beyond the k best, so that ties can be settled: in half precision every row has some


def top_k(values_NX: Array, k: int) -> tuple[Array, Array]:
    """`lax.top_k`, kept from being merged with another or with a slice of it: XLA would make one full sort of them."""
    best_NK, place_NK = lax.optimization_barrier(lax.top_k(values_NX, k))
    return best_NK, place_NK


def best_by_id(values_NX: Array, ids_NX: Array, k: int) -> tuple[Array, Array]:
    """The k best of each row's candidates, in any order, with their ids: best first, ties by lower id.

    Only where there are equals can `top_k` have left one out or misplaced it. Then some more than k are looked for:
    where the last of them is below the k-th, all that equal the k-th are among them, and are put in order; only rows
    with so many equals that it is not must be sorted by id as a whole.
    """

    def found(count: int) -> tuple[Array, Array]:
        best_NJ, place_NJ = top_k(values_NX, min(count, values_NX.shape[1]))
        return best_NJ, jnp.take_along_axis(ids_NX, place_NJ, axis=1)

    def by_id(rows_R: Array) -> tuple[Array, Array]:
        ids_RX, values_RX = lax.sort((ids_NX[rows_R], values_NX[rows_R]), dimension=1, num_keys=1)
        best_RK, place_RK = top_k(values_RX, k)
        return best_RK, jnp.take_along_axis(ids_RX, place_RK, axis=1)

    def in_order() -> tuple[Array, Array]:
        best_NW, ids_NW = found(k + _SPARE)
        falling_NW, ids_NW = lax.sort((-best_NW, ids_NW), dimension=1, num_keys=2)
        ordered = -falling_NW[:, :k], ids_NW[:, :k]
        if best_NW.shape == values_NX.shape:
            return ordered
        return settle(ordered, best_NW[:, -1] == best_NW[:, k - 1], by_id)

    best_NJ, ids_NJ = found(k + 1)
    tied = (best_NJ[:, 1:] == best_NJ[:, :-1]).any()
    return lax.cond(tied, in_order, lambda: (best_NJ[:, :k], ids_NJ[:, :k]))


def best_of_logits(logits_NV: Array, k: int) -> tuple[Array, Array]:
    """Values and ids (N, K) of the k likeliest words by their logits: no log-probability of the others is written."""
    best_NK, ids_NK = top_k(logits_NV, k)  # ties by lower id
    return best_NK - jax.nn.logsumexp(logits_NV, axis=1, keepdims=True), ids_NK


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
