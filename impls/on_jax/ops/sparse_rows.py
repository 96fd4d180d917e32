"""Few rows of large arrays: which ones a batch reads, a table of them, and their change in place.

Shapes must be known before a batch is, so a list of rows has room for the most that there can be. Its rows stand at its
end, each once; the places before them hold a number beyond the last row, which is read as any row and never written.
Loops visit the places that hold rows, so that the room costs little more than to be cleared.

Shape letters besides those of `impls/spec.py`: R ids, U places of a list, B places visited together.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from vocabench.impls.on_jax.layer import Array, Tree

_TOGETHER = 1024

Arrays = tuple[Array, ...]


def distinct(ids_R: Array, size: int, room: int) -> tuple[Array, Array]:
    """A list (U,) of the rows that ids name, and (R,) the place of each id in it.

    Args:
        ids_R: From 0, below `size`, or `size` itself, which names no row and has no place.
        size: Of the arrays that rows are of.
        room: U, at least as many as there are rows.
    """
    every_R = jnp.arange(len(ids_R), dtype=jnp.int32)
    speaker_R = jnp.zeros(size + 1, jnp.int32).at[ids_R].max(every_R)[ids_R]  # the last of equals, for all of them
    count_R = jnp.cumsum((speaker_R == every_R) & (ids_R < size), dtype=jnp.int32)
    place_R = jnp.where(ids_R < size, room - count_R[speaker_R], room)
    return jnp.full(room, size, jnp.int32).at[place_R].set(ids_R, mode="drop"), place_R


def tables(params: Tree, rows: Tree) -> Tree:
    """`params` with the listed rows (U, ...) in place of the arrays that rows are listed of."""
    return params | {name: params[name].at[rows_U].get(mode="clip") for name, rows_U in rows.items()}


def change(rows_U: Array, arrays: Arrays, changed: Callable[..., Arrays], *given: Array) -> Arrays:
    """`arrays` (V, ...) with the listed rows changed, in place where XLA may write to them.

    Args:
        rows_U: A list of rows.
        arrays: Of equal length.
        changed: From rows (B, ...) of each array, as a tuple, and rows of what is given, to the new rows of each array.
        given: (U, ...) more that the change needs, in order of the list.
    """
    size, together = len(arrays[0]), min(_TOGETHER, len(rows_U))
    rows = len(rows_U) - jnp.argmax(rows_U < size)

    def visit(number: Array, arrays: Arrays) -> Arrays:
        end = len(rows_U) - number * together
        start = jnp.maximum(end - together, 0)
        row_B, *given_B = (lax.dynamic_slice_in_dim(each, start, together) for each in (rows_U, *given))
        row_B = jnp.where(start + jnp.arange(together) < end, row_B, size)  # the last visit begins where it can
        new = changed(tuple(array.at[row_B].get(mode="clip") for array in arrays), *given_B)
        return tuple(array.at[row_B].set(value, mode="drop") for array, value in zip(arrays, new, strict=True))

    return lax.fori_loop(0, (rows + together - 1) // together, visit, arrays)
