"""Tests of the Pallas kernels of the softmax within clusters."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.pallas.triton")

import jax.numpy as jnp

from tests.impls.on_jax import pallas
from vocabench.impls.on_jax.device import precision
from vocabench.impls.on_jax.pallas import cluster_kernels

pytestmark = pytest.mark.usefixtures("no_tf32")

TOKENS, CLUSTERS = 2560, 210


@pytest.fixture
def few_programs(monkeypatch):
    """Use few programs and small sorts, so that small batches take several of each. This also saves time."""
    monkeypatch.setattr(cluster_kernels, "_PROGRAMS", 2)
    monkeypatch.setattr(cluster_kernels, "_SORTED", 64)


def drawn(biased, tokens, clusters, width, dim) -> tuple[Any, Any, Any]:
    """Return trained arrays, fixed arrays and weights. Some clusters have most tokens, some none, one has no word."""
    rng = np.random.default_rng(tokens)
    size_C = rng.integers(1, width + 1, clusters)
    size_C[0], size_C[-1] = width, 0
    word_CS = np.where(np.arange(width) < size_C[:, None], 1, -1)
    cluster_N = (rng.random(tokens) ** 3 * (clusters - 1)).astype(int)
    cluster_N[1::9] = clusters
    slot_N = (rng.random(tokens) * np.append(size_C, 5)[cluster_N]).astype(int)
    slab_CSD = rng.normal(size=(clusters, width, dim)) * (word_CS >= 0)[:, :, None] / dim**0.5
    bias_CS = rng.normal(size=(clusters, width)) if biased else None
    trained = rng.normal(size=(tokens, dim)), slab_CSD, bias_CS
    return trained, [jnp.asarray(array, jnp.int32) for array in (word_CS, cluster_N, slot_N)], rng.normal(size=tokens)


def exact(trained, fixed, dnll_N) -> list[Any]:
    """Return losses and gradients in float64, token by token."""
    hidden_ND, slab_CSD, bias_CS = jax.tree.map(lambda array: np.asarray(array, np.float64), trained)
    word_CS, cluster_N, slot_N = (np.asarray(array) for array in fixed)
    nll_N, dhidden_ND, dslab_CSD = np.zeros(len(hidden_ND)), np.zeros_like(hidden_ND), np.zeros_like(slab_CSD)
    dbias_CS = np.zeros(word_CS.shape)
    for token in np.flatnonzero(cluster_N < len(slab_CSD)):
        cluster, slot = cluster_N[token], slot_N[token]
        scores_S = slab_CSD[cluster] @ hidden_ND[token] + (0 if bias_CS is None else bias_CS[cluster])
        probability_S = np.where(word_CS[cluster] < 0, 0, np.exp(scores_S))
        probability_S /= probability_S.sum()
        nll_N[token] = -np.log(probability_S[slot])
        dscores_S = dnll_N[token] * (probability_S - (np.arange(len(scores_S)) == slot))
        dhidden_ND[token] = dscores_S @ slab_CSD[cluster]
        dslab_CSD[cluster] += np.outer(dscores_S, hidden_ND[token])
        dbias_CS[cluster] += dscores_S
    return [nll_N, dhidden_ND, dslab_CSD, *([] if bias_CS is None else [dbias_CS])]


@pytest.mark.many_cells
@pytest.mark.parametrize(
    ("sizes", "biased", "dtype", "tolerance"),
    [
        ((50, 7, 40, 24), True, "float32", 1e-5),
        ((1, 3, 8, 16), False, "float32", 1e-5),
        ((150, 3, 37, 201), False, "float32", 1e-5),
        ((150, 3, 37, 201), True, "bfloat16", 2e-2),
    ],
)
def test_softmax_within_clusters_agrees_with_float64(sizes, biased, dtype, tolerance, few_programs):
    trained, fixed, dnll_N = drawn(biased, *sizes)
    trained = jax.tree.map(lambda array: jnp.asarray(array, dtype), trained)

    def nll(trained):
        return cluster_kernels.in_cluster_nll(*trained, *fixed, interpret=pallas.INTERPRET)

    nll_N, *gradients = pallas.differentiated(nll, trained, dnll_N)
    pallas.close([nll_N, *gradients], exact(trained, fixed, dnll_N), tolerance)
    assert not gradients[1][np.asarray(fixed[0]) < 0].any()
    np.testing.assert_array_equal(jax.jit(nll)(trained), nll_N)


def lowered(dtype, width, dim):
    trained = (TOKENS, dim), (CLUSTERS, width, dim), (CLUSTERS, width)
    fixed = (CLUSTERS, width), (TOKENS,), (TOKENS,)
    return pallas.loss_for_a_gpu(cluster_kernels.in_cluster_nll, trained, fixed, dtype)


@pytest.mark.usefixtures("kernels_shown")
@pytest.mark.parametrize(
    ("dtype", "width", "dim", "tf32"), [("bfloat16", 320, 512, 0), ("tf32", 77, 1000, 4), ("float32", 320, 512, 0)]
)
def test_program_for_a_gpu_has_kernels_of_the_requested_precision(dtype, width, dim, tf32, capsys):
    with precision(dtype):
        program = lowered(dtype, width, dim)
    kernels = capsys.readouterr().out
    assert program.count(pallas.TRITON) == 3
    assert kernels.count("tt.dot") == 4
    assert kernels.count("inputPrecision = tf32") == tf32
    assert kernels.count("scf.for") == 6
    assert "scf.while" not in kernels


def test_kernels_do_not_depend_on_64_bit_types():
    with jax.enable_x64(True):
        assert lowered("float32", 40, 24).count(pallas.TRITON) == 3
