"""Lists of few rows and their change in place, against NumPy."""

import numpy as np
import pytest

pytest.importorskip("jax")

import jax.numpy as jnp

from vocabench.impls.on_jax.ops import sparse_rows

VOCAB = 11


@pytest.mark.parametrize("ids", [[4, 9, 4, 0, 10, 9], [3], [VOCAB, 2, VOCAB, 2], [VOCAB]])
def test_a_list_has_each_row_once_behind_the_places_without_one(ids):
    rows_U, place_R = (np.asarray(a) for a in sparse_rows.distinct(jnp.array(ids, jnp.int32), VOCAB, len(ids)))
    named = set(ids) - {VOCAB}
    assert rows_U.tolist() == [VOCAB] * (len(ids) - len(named)) + rows_U[len(ids) - len(named) :].tolist()
    assert set(rows_U) - {VOCAB} == named
    assert [rows_U[place] for row, place in zip(ids, place_R, strict=True) if row < VOCAB] == [
        row for row in ids if row < VOCAB
    ]


@pytest.mark.parametrize("together", [1, 3, 4, 100])
@pytest.mark.parametrize("rows", [[11, 11, 7, 0, 10, 3, 5], [11, 11, 11], [8, 1, 2, 3, 4, 5, 6]])
def test_listed_rows_are_changed_once_and_no_other(monkeypatch, together, rows):
    """However many are visited together, whether or not the places divide by it."""
    monkeypatch.setattr(sparse_rows, "_TOGETHER", together)
    table_VD, number_V = np.arange(2.0 * VOCAB).reshape(VOCAB, 2), np.arange(VOCAB)
    given_U = np.arange(1, len(rows) + 1)

    def changed(held, given_B):
        table_BD, number_B = held
        return table_BD + given_B[:, None], number_B - 100

    found = sparse_rows.change(
        jnp.array(rows), (jnp.array(table_VD, jnp.float32), jnp.array(number_V)), changed, jnp.array(given_U)
    )
    for row, given in zip(rows, given_U, strict=True):
        if row < VOCAB:
            table_VD[row] += given
            number_V[row] -= 100
    assert np.array_equal(found[0], table_VD)
    assert np.array_equal(found[1], number_V)
