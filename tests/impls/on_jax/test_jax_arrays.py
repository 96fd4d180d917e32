"""Operations on arrays that several layers in JAX share."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

jnp = pytest.importorskip("jax.numpy")
from vocabench.impls.on_jax.ops.arrays import counts_up_to

numbers = st.integers(-5, 12)


@pytest.mark.lengthy
@settings(deadline=None)  # JAX compiles for each length
@given(st.lists(numbers, min_size=1, max_size=20), st.lists(numbers, min_size=1, max_size=20))
def test_counts_up_to_are_those_of_searchsorted(entries, values):
    sorted_N, values_M = np.sort(np.array(entries, np.int32)), np.array(values, np.int32)
    expected = np.searchsorted(sorted_N, values_M, side="right")
    np.testing.assert_array_equal(counts_up_to(jnp.asarray(sorted_N), jnp.asarray(values_M)), expected)
