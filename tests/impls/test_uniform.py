"""Initial parameters drawn by all CPUs are those that one generator draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabench.impls import uniform as module
from vocabench.impls.uniform import uniform


@pytest.mark.parametrize("cores", [1, 2, 5])
@given(size=st.integers(0, 700), bound=st.floats(1e-3, 10), seed=st.integers(0, 2**32))
def test_as_by_one_generator(cores: int, size: int, bound: float, seed: int) -> None:
    ours, numpys = np.random.default_rng(seed), np.random.default_rng(seed)
    ours.random(3), numpys.random(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", 64)  # numbers, so that there are several pieces and threads
        patch.setattr(module.cpus, "usable", lambda: cores)
        found = uniform(ours, bound, (size, 2))
    np.testing.assert_allclose(found, numpys.uniform(-bound, bound, (size, 2)), rtol=0, atol=1e-15 * bound)
    assert ours.random() == numpys.random()
