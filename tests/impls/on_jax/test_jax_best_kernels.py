"""Tests of the Pallas kernels that find the likeliest words."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.pallas.triton")

import jax.numpy as jnp

from tests.impls.on_jax import pallas
from vocabench.impls.on_jax.pallas import topk_kernels


@pytest.mark.many_cells
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("k", [1, 10, 60])
def test_best_of_clusters_is_exact(k, biased):
    """Half of the rows have ties, and some clusters hold fewer than k words."""
    rng = np.random.default_rng(k)
    size_C = rng.integers(1, 25, 9)
    held_CS = np.arange(24) < size_C[:, None]
    word_CS = np.full((9, 24), -1)
    word_CS[held_CS] = rng.permutation(held_CS.sum())
    scores_NCS = rng.integers(-2, 3, (6, 9, 24)).astype(np.float32)
    scores_NCS[:3] += rng.normal(size=(3, 9, 24))
    bias_CS = rng.integers(0, 2, (9, 24)).astype(np.float32) if biased else np.zeros((9, 24))
    log_cluster_NC = np.log(rng.dirichlet(np.ones(9), 6))
    log_cluster_NC[4:] = -2.0
    scores_NF, biases = jnp.asarray(scores_NCS.reshape(6, -1)), jnp.asarray(bias_CS) if biased else None
    inputs = scores_NF, biases, jnp.asarray(log_cluster_NC, "float32"), jnp.asarray(word_CS)
    best = topk_kernels.best_of_clusters(*inputs, k, interpret=pallas.INTERPRET)
    values_NK, ids_NK = (np.asarray(array) for array in best)
    joint_NCS = np.where(held_CS, scores_NCS + bias_CS, -np.inf)
    joint_NCS += (log_cluster_NC - np.logaddexp.reduce(joint_NCS, axis=2))[:, :, None]
    by_word_NV = np.empty((6, held_CS.sum()))
    by_word_NV[:, word_CS[held_CS]] = joint_NCS[:, held_CS]
    np.testing.assert_allclose(values_NK, -np.sort(-by_word_NV, axis=1)[:, :k], rtol=1e-5)
    np.testing.assert_allclose(values_NK, np.take_along_axis(by_word_NV, ids_NK, axis=1), rtol=1e-5)
    assert all(len(set(row)) == k for row in ids_NK.tolist())
    tied_NK = values_NK[:, 1:] == values_NK[:, :-1]
    assert (ids_NK[:, 1:] > ids_NK[:, :-1])[tied_NK].all()
    assert tied_NK.any() == (k > 1)


@pytest.mark.parametrize(("columns", "k"), [(1, 1), (50, 7), (700, 10), (700, 16)])
def test_best_of_groups_is_exact_with_ties(columns, k):
    """Scores have few different values, so that most are ties. There are fewer than k groups, or slots in a group."""
    rng = np.random.default_rng(columns)
    scores_NV = rng.integers(-3, 4, (5, columns)).astype(np.float32)
    scores_NV[scores_NV == 2] = -np.inf
    scores_NV[0] = rng.normal(size=columns)
    word_X = np.append(rng.permutation(columns), [-1] * (-columns % 32))
    scores_NX = np.append(scores_NV[:, word_X[:columns]], np.full((5, -columns % 32), 9.0, np.float32), axis=1)
    inputs = jnp.asarray(scores_NX), jnp.asarray(word_X.reshape(-1, 32), jnp.int32), k
    values_NK, ids_NK = topk_kernels.best_of_groups(*inputs, interpret=pallas.INTERPRET)
    order_NV = np.argsort(-scores_NV, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids_NK, order_NV)
    np.testing.assert_array_equal(values_NK, np.take_along_axis(scores_NV, order_NV, axis=1))


@pytest.mark.parametrize("clustered", [True, False])
def test_rows_with_nan_have_valid_ids(clustered):
    """All ids are in the vocabulary, and rows without NaN are not affected."""
    word_CS = np.array([[4, -1, -1], [0, 3, -1], [1, 2, 5]])
    scores_NF = np.zeros((3, 9), np.float32)
    scores_NF[0], scores_NF[1, 3:6] = np.nan, np.nan
    log_cluster_NC = np.log(np.full((3, 3), 1 / 3, np.float32))
    words = jnp.asarray(word_CS, jnp.int32)
    if clustered:
        inputs = jnp.asarray(scores_NF), None, jnp.asarray(log_cluster_NC), words, 5
        values_NK, ids_NK = topk_kernels.best_of_clusters(*inputs, interpret=pallas.INTERPRET)
    else:
        values_NK, ids_NK = topk_kernels.best_of_groups(jnp.asarray(scores_NF), words, 5, interpret=pallas.INTERPRET)
    assert np.isnan(values_NK[0]).all()
    assert all(set(row) <= set(range(6)) for row in np.asarray(ids_NK).tolist())
    assert np.asarray(ids_NK)[2].tolist() == ([4, 0, 3, 1, 2] if clustered else [0, 1, 2, 3, 4])


def best_of_clusters(scores_NF, bias_CS, log_cluster_NC, word_CS):
    return topk_kernels.best_of_clusters(scores_NF, bias_CS, log_cluster_NC, word_CS, 10)


def best_of_groups(scores_NF, word_CS):
    return topk_kernels.best_of_groups(scores_NF, word_CS, 10)


@pytest.mark.parametrize("bits", [32, 64])
def test_program_for_a_gpu_consists_of_kernels(bits):
    """64-bit types do not change that."""
    scores, words = (jnp.float32, 64, 210 * 316), (jnp.int32, 210, 316)
    with jax.enable_x64(bits == 64):
        program = pallas.for_a_gpu(best_of_clusters, scores, (jnp.bfloat16, 210, 316), (jnp.float32, 64, 210), words)
        assert program.count(pallas.TRITON) == 4
        assert pallas.for_a_gpu(best_of_groups, scores, words).count(pallas.TRITON) == 4
