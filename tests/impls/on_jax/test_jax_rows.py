"""Tests of lists of rows and of updates of the listed rows, against NumPy."""

import numpy as np
import pytest

pytest.importorskip("jax")

import jax.numpy as jnp

from vocabench.impls.on_jax.ops import sparse_rows

VOCAB = 11


@pytest.mark.parametrize("ids", [[4, 9, 4, 0, 10, 9], [3], [VOCAB, 2, VOCAB, 2], [VOCAB]])
def test_list_has_each_row_once_after_unused_places(ids):
    rows_U, place_R = (np.asarray(array) for array in sparse_rows.distinct(jnp.array(ids, jnp.int32), VOCAB, len(ids)))
    rows = set(ids) - {VOCAB}
    assert rows_U.tolist() == [VOCAB] * (len(ids) - len(rows)) + rows_U[len(ids) - len(rows) :].tolist()
    assert set(rows_U) - {VOCAB} == rows
    assert [rows_U[place] for row, place in zip(ids, place_R, strict=True) if row < VOCAB] == [
        row for row in ids if row < VOCAB
    ]


@pytest.mark.parametrize("together", [1, 3, 4, 100])
@pytest.mark.parametrize("rows", [[11, 11, 7, 0, 10, 3, 5], [11, 11, 11], [8, 1, 2, 3, 4, 5, 6]])
def test_only_listed_rows_change_and_each_once(monkeypatch, together, rows):
    """The number of rows that are visited together does not matter."""
    monkeypatch.setattr(sparse_rows, "_TOGETHER", together)
    table_VD, number_V = np.arange(2.0 * VOCAB).reshape(VOCAB, 2), np.arange(VOCAB)
    added_U = np.arange(1, len(rows) + 1)

    def changed(held, added_B):
        table_BD, number_B = held
        return table_BD + added_B[:, None], number_B - 100

    new_table_VD, new_number_V = sparse_rows.change(
        jnp.array(rows), (jnp.array(table_VD, jnp.float32), jnp.array(number_V)), changed, jnp.array(added_U)
    )
    for row, added in zip(rows, added_U, strict=True):
        if row < VOCAB:
            table_VD[row] += added
            number_V[row] -= 100
    assert np.array_equal(new_table_VD, table_VD)
    assert np.array_equal(new_number_V, number_V)
