"""Few rows of large arrays: the list of rows that a batch reads, a table of them, and their update in place.

Shapes must be known before the batch, so a list of rows has room for as many rows as there can be. Its rows are at its
end, each once. The unused places before them hold a number beyond the last row, which is read as an arbitrary row and
never written. Loops visit only the places that hold rows, so that the unused room costs little more than clearing it.

Shape letters besides those of `impls/spec.py`: R ids, U places of a list, B places
visited together.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from vocabench.impls.on_jax.ops.arrays import Array, Tree

_TOGETHER = 1024

Arrays = tuple[Array, ...]


def distinct(ids_R: Array, size: int, room: int) -> tuple[Array, Array]:
    """Return a list (U,) of the rows that occur in the ids, and the place (R,) of each id in the list.

    Args:
        ids_R: Row numbers below `size`, or `size` itself for no row, which has no place in the list.
        size: Number of rows of the arrays.
        room: Length U of the list, at least the number of different rows.
    """
    index_R = jnp.arange(len(ids_R), dtype=jnp.int32)
    last_R = jnp.zeros(size + 1, jnp.int32).at[ids_R].max(index_R)[ids_R]  # the last index with the same id
    count_R = jnp.cumsum((last_R == index_R) & (ids_R < size), dtype=jnp.int32)
    place_R = jnp.where(ids_R < size, room - count_R[last_R], room)
    return jnp.full(room, size, jnp.int32).at[place_R].set(ids_R, mode="drop"), place_R


def tables(params: Tree, rows: Tree) -> Tree:
    """Return `params` with each array that has a list of rows replaced by these rows (U, ...)."""
    return params | {name: params[name].at[rows_U].get(mode="clip") for name, rows_U in rows.items()}


def change(rows_U: Array, arrays: Arrays, changed: Callable[..., Arrays], *inputs: Array) -> Arrays:
    """Return `arrays` (V, ...) with the listed rows changed, in place where XLA can reuse the buffers.

    Args:
        rows_U: A list of rows.
        arrays: Arrays of equal length.
        changed: Function from the rows (B, ...) of each array, as a tuple, and the rows of each of `inputs`, to the new
            rows of each array.
        *inputs: Further inputs (U, ...) of `changed`, in the order of the list.
    """
    size, together = len(arrays[0]), min(_TOGETHER, len(rows_U))
    rows = len(rows_U) - jnp.argmax(rows_U < size)

    def visit(number: Array, arrays: Arrays) -> Arrays:
        end = len(rows_U) - number * together
        start = jnp.maximum(end - together, 0)
        row_B, *inputs_B = (lax.dynamic_slice_in_dim(array, start, together) for array in (rows_U, *inputs))
        row_B = jnp.where(start + jnp.arange(together) < end, row_B, size)  # the last visit may overlap the one before
        new = changed(tuple(array.at[row_B].get(mode="clip") for array in arrays), *inputs_B)
        return tuple(array.at[row_B].set(value, mode="drop") for array, value in zip(arrays, new, strict=True))

    return lax.fori_loop(0, (rows + together - 1) // together, visit, arrays)
