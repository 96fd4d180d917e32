"""The k best of scored words, including the order of any number of ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vocabench.harness import registry


def by_torch(scores_NF: NDArray, ids_NF: NDArray, k: int) -> tuple[NDArray, NDArray]:
    import torch

    from vocabench.impls.on_torch.ops import topk

    ids = torch.from_numpy(ids_NF)
    values, best_ids = topk.best(
        torch.from_numpy(scores_NF), k, lambda rows_R, column_RM: ids[rows_R].gather(1, column_RM)
    )
    return values.numpy(), best_ids.numpy()


def by_jax(scores_NF: NDArray, ids_NF: NDArray, k: int) -> tuple[NDArray, NDArray]:
    from vocabench.impls.on_jax.ops import topk

    values, ids = topk.best_by_id(topk.jnp.asarray(scores_NF), topk.jnp.asarray(ids_NF.astype(np.int32)), k)
    return np.asarray(values), np.asarray(ids)


SELECTIONS = [f for name, f in (("torch", by_torch), ("jax", by_jax)) if name in registry.installed_frameworks()]


@pytest.mark.parametrize("select", SELECTIONS)
@settings(max_examples=12, deadline=None)
@given(
    shape=st.sampled_from([(1, 1), (1, 90), (13, 90)]),  # few shapes, since JAX compiles for each
    k=st.sampled_from([1, 10]),
    kinds=st.sampled_from([1, 2, 6, 40, 10**6]),
    seed=st.integers(0, 99),
)
def test_words_are_sorted_by_falling_value_and_rising_id(select, shape, k, kinds, seed) -> None:
    rng = np.random.default_rng(seed)
    scores_NF = rng.integers(0, kinds, shape).astype(np.float32)
    scores_NF[scores_NF == 3] = -np.inf
    ids_NF = np.stack([rng.permutation(shape[1]) for _ in range(shape[0])])
    k = min(k, shape[1])
    values_NK, best_ids_NK = select(scores_NF, ids_NF, k)
    order_NK = np.lexsort((ids_NF, -scores_NF), axis=1)[:, :k]
    np.testing.assert_array_equal(values_NK, np.take_along_axis(scores_NF, order_NK, axis=1))
    np.testing.assert_array_equal(best_ids_NK, np.take_along_axis(ids_NF, order_NK, axis=1))
