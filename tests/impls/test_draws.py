"""Draws of a column for a uniform number, from few and from many columns."""

import importlib

import numpy as np
import pytest

from vocabench.harness import registry

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
ARRAYS = {"torch": "tensors", "tensorflow": "ops.tensors", "jax": "ops.arrays"}
ROWS = 400


def draw(framework, probabilities_NV, uniforms_N):
    module = importlib.import_module(f"vocabench.impls.on_{framework}.{ARRAYS[framework]}")
    library = importlib.import_module("jax.numpy" if framework == "jax" else framework)
    array = library.constant if framework == "tensorflow" else library.asarray
    return np.asarray(module.draw(array(probabilities_NV), array(uniforms_N)))


@pytest.mark.parametrize("columns", [1, 300, 4095, 4096, 4097, 9000])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_column_is_the_first_one_beyond_the_share(framework, columns):
    rng = np.random.default_rng(columns)
    probabilities_NV = rng.dirichlet(np.full(columns, 0.1), ROWS).astype(np.float32)
    probabilities_NV *= rng.random((ROWS, columns)) < 0.5  # columns that must not be drawn
    probabilities_NV[:, rng.integers(columns)] = 0.1
    uniforms_N = rng.random(ROWS, np.float32)
    uniforms_N[:2] = 0, 1 - 2.0**-24
    sums_NV = np.cumsum(probabilities_NV, axis=1, dtype=np.float64)
    share_N1 = (uniforms_N * sums_NV[:, -1])[:, None]
    expected_N = np.argmax(sums_NV > share_N1, axis=1)
    drawn_N = draw(framework, probabilities_NV, uniforms_N)
    clear_N = np.abs(sums_NV - share_N1).min(axis=1) > 1e-5 * sums_NV[:, -1]
    assert clear_N.mean() > 0.3
    np.testing.assert_array_equal(drawn_N[clear_N], expected_N[clear_N])
    assert (probabilities_NV[np.arange(ROWS), drawn_N] > 0).all()


@pytest.mark.parametrize("columns", [300, 9000])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_column_is_0_if_there_is_no_such_one(framework, columns):
    probabilities_NV = np.full((3, columns), 0.5, np.float32)
    probabilities_NV[0], probabilities_NV[1] = 0, np.nan
    assert draw(framework, probabilities_NV, np.full(3, 0.5, np.float32))[:2].tolist() == [0, 0]
