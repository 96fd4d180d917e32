"""The k best of scored words, with ties in exact order, and rows that need more work than the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls.on_jax.ops.arrays import Array

Results = TypeVar("Results", bound=tuple[Array, ...])

_GROUP = 8  # rows solved at a time
_SPARE = 22  # additional words that are searched for to settle ties, which every row has in half precision


def top_k(values_NX: Array, k: int) -> tuple[Array, Array]:
    """Return `lax.top_k`, behind a barrier.

    XLA would otherwise merge it with another one, or with a slice of its result, into a full sort.
    """
    best_NK, place_NK = lax.top_k(values_NX, k)
    # A barrier around both would read the pair itself, which XLA's partitioner of `top_k` over devices cannot take.
    return lax.optimization_barrier(best_NK), lax.optimization_barrier(place_NK)


def best_by_id(values_NX: Array, ids_NX: Array, k: int) -> tuple[Array, Array]:
    """Return the k best of each row's candidates and their ids: best first, ties by lower id.

    `top_k` can only drop or misplace candidates that are tied. If there are ties, more than k candidates are taken. If
    the last of these is below the k-th, they include all ties of the k-th, and are sorted. Only rows with more ties are
    sorted by id as a whole.

    Args:
        values_NX: Values of the candidates, in any order.
        ids_NX: Ids of the candidates.
        k: Number of results.
    """

    def best(count: int) -> tuple[Array, Array]:
        best_NJ, place_NJ = top_k(values_NX, min(count, values_NX.shape[1]))
        return best_NJ, jnp.take_along_axis(ids_NX, place_NJ, axis=1)

    def by_id(rows_R: Array) -> tuple[Array, Array]:
        ids_RX, values_RX = lax.sort((ids_NX[rows_R], values_NX[rows_R]), dimension=1, num_keys=1)
        best_RK, place_RK = top_k(values_RX, k)
        return best_RK, jnp.take_along_axis(ids_RX, place_RK, axis=1)

    def in_order() -> tuple[Array, Array]:
        best_NW, ids_NW = best(k + _SPARE)
        falling_NW, ids_NW = lax.sort((-best_NW, ids_NW), dimension=1, num_keys=2)
        ordered = -falling_NW[:, :k], ids_NW[:, :k]
        if best_NW.shape == values_NX.shape:
            return ordered
        return settle(ordered, best_NW[:, -1] == best_NW[:, k - 1], by_id)

    best_NJ, ids_NJ = best(k + 1)
    tied = (best_NJ[:, 1:] == best_NJ[:, :-1]).any()
    return lax.cond(tied, in_order, lambda: (best_NJ[:, :k], ids_NJ[:, :k]))


def best_of_logits(logits_NV: Array, k: int) -> tuple[Array, Array]:
    """Return the values and ids (N, K) of the k likeliest words, without the log-probabilities of the others."""
    best_NK, ids_NK = top_k(logits_NV, k)  # ties by lower id
    return best_NK - jax.nn.logsumexp(logits_NV, axis=1, keepdims=True), ids_NK


def settle(results: Results, open_N: Array, solve: Callable[[Array], Results]) -> Results:
    """Return `results` with the open rows replaced by what `solve` returns for them, a few rows at a time.

    Args:
        results: Arrays (N, ...).
        open_N: True where a row is not settled.
        solve: Function from row numbers (R,) to arrays (R, ...). Unused row numbers are beyond the last row.
    """
    rows = open_N.shape[0]
    group = min(_GROUP, rows)
    if rows == group:  # XLA would unroll a loop over a single group, and solve it unconditionally

        def all_solved() -> Results:
            solved = solve(jnp.arange(rows))
            return jax.tree.map(
                lambda old, new: jnp.where(_like(open_N, old), new.astype(old.dtype), old), results, solved
            )

        return lax.cond(open_N.any(), all_solved, lambda: results)

    def body(state: tuple[Results, Array]) -> tuple[Results, Array]:
        results, open_N = state
        (rows_R,) = jnp.nonzero(open_N, size=group, fill_value=rows)
        solved = solve(rows_R)
        merged = jax.tree.map(lambda old, new: old.at[rows_R].set(new.astype(old.dtype), mode="drop"), results, solved)
        return merged, open_N.at[rows_R].set(False, mode="drop")

    return lax.while_loop(lambda state: state[1].any(), body, (results, open_N))[0]


def _like(open_N: Array, array: Array) -> Array:
    """Return `open_N` with the number of dimensions of `array`."""
    return open_N.reshape(-1, *[1] * (array.ndim - 1))
