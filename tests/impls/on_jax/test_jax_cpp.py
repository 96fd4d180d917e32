"""Tests of the C++ kernels of two-level layers: they agree with JAX's own products under all transformations."""

from typing import Any

import numpy as np
import pytest

from vocabench.harness import layers
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls import cpp, cpus
from vocabench.impls.cpp import CPP
from vocabench.impls.errors import BadInput

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from vocabench.impls.on_jax.native import native
from vocabench.impls.on_jax.ops import cpp_kernels
from vocabench.impls.on_jax.two_level import cluster_softmax

if cpp.compiler() is None:
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)

TILES = next(iter(cluster_softmax.FORMS))


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    """Compile and register the kernels, which some tests call without a layer."""
    assert cpp_kernels.known("float32")


def inputs_of_loss(clusters=4, slots=6, dim=10, tokens=15, bias=True) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    size_C = np.array([6, 1, 3, 2])
    word_CS = np.where(np.arange(slots) < size_C[:, None], 1, -1)
    cluster_N = rng.integers(0, clusters + 1, tokens)  # `clusters` means none of them
    slot_N = rng.integers(0, np.append(size_C, 9)[cluster_N])
    slab_CSD = rng.normal(size=(clusters, slots, dim)) * (word_CS >= 0)[:, :, None]
    bias_CS = rng.normal(size=(clusters, slots)) * (word_CS >= 0) if bias else None
    trained = [
        None if array is None else jnp.asarray(array, jnp.float32)
        for array in (rng.normal(size=(tokens, dim)), slab_CSD, bias_CS)
    ]
    return trained, [jnp.asarray(array, jnp.int32) for array in (word_CS, cluster_N, slot_N)]


@pytest.mark.parametrize("bias", [False, True])
def test_targets_outside_of_all_clusters_have_no_loss_and_no_gradient(bias):
    trained, fixed = inputs_of_loss(bias=bias)
    weight_N = jnp.linspace(0.5, 2, len(fixed[1]))

    def loss(trained, form):
        return (weight_N * cluster_softmax.in_cluster_nll(*trained, *fixed, form=form)).sum()

    (total, gradients), (expected, expected_gradients) = (
        jax.jit(jax.value_and_grad(lambda trained, form=form: loss(trained, form)))(trained) for form in (CPP, TILES)
    )
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    for gradient, exact in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected_gradients), strict=True):
        np.testing.assert_allclose(gradient, exact, rtol=1e-4, atol=1e-5)
    assert not np.asarray(gradients[0])[np.asarray(fixed[1]) == 4].any()
    assert not np.asarray(gradients[1])[np.asarray(fixed[0]) < 0].any()


def test_kernels_run_under_vmap_and_in_a_loop():
    (hidden_ND, slab_CSD, bias_CS), fixed = inputs_of_loss()

    def total(hidden_ND, form):
        return cluster_softmax.in_cluster_nll(hidden_ND, slab_CSD, bias_CS, *fixed, form=form).sum()

    batches_BND = jnp.stack([hidden_ND, -hidden_ND, 2 * hidden_ND])
    expected_B = jax.vmap(lambda hidden_ND: total(hidden_ND, TILES))(batches_BND)
    np.testing.assert_allclose(jax.vmap(lambda hidden_ND: total(hidden_ND, CPP))(batches_BND), expected_B, rtol=1e-5)
    np.testing.assert_allclose(jax.lax.map(lambda hidden_ND: total(hidden_ND, CPP), batches_BND), expected_B, rtol=1e-5)


def test_pairs_may_be_in_any_order():
    (hidden_ND, slab_CSD, bias_CS), (word_CS, *_) = inputs_of_loss()
    row_P, cluster_P = jnp.array([3, 0, 3, 7, 1], jnp.int32), jnp.array([2, 0, 0, 2, 3], jnp.int32)
    scores_PS, expected_PS = (
        cluster_softmax.pair_scores(hidden_ND, slab_CSD, bias_CS, word_CS, row_P, cluster_P, form)
        for form in (CPP, TILES)
    )
    np.testing.assert_allclose(scores_PS, expected_PS, rtol=1e-5, atol=1e-5)


def test_kernels_are_for_float32_on_a_cpu():
    for dtype in ("float64", "bfloat16"):
        assert CPP not in layers.forms("jax", layers.spec("sohsm", counts=zipf_counts(50), dim=8, dtype=dtype))
    assert CPP not in layers.forms("jax", layers.spec("sohsm", counts=zipf_counts(50), dim=8), "cuda")


def test_kernels_use_as_many_threads_as_xla(monkeypatch):
    monkeypatch.setattr(cpus, "usable", lambda: 3)
    monkeypatch.delenv("NPROC", raising=False)
    assert cpp_kernels.threads() == 3
    monkeypatch.setenv("NPROC", "5")
    assert cpp_kernels.threads() == 5


@pytest.mark.many_cells
@pytest.mark.parametrize("method", ["sohsm", "class_hsm", "huffman"])
def test_derivatives_that_kernels_lack_are_refused(method):
    layer = native(layers.spec(method, counts=zipf_counts(60), dim=8))
    assert layer.form == CPP
    trees, hidden = layer.init(), jnp.ones((3, 8))

    def gradient(hidden):
        return jax.grad(layer.loss, argnums=2)(*trees, hidden, jnp.arange(3)).sum()

    for differentiated in (jax.grad(gradient), jax.jit(jax.grad(gradient))):
        with pytest.raises(BadInput, match=r"form 'cpp' has no second derivatives of losses: allowed: .* another form"):
            differentiated(hidden)
    with pytest.raises(BadInput, match="form 'cpp' has no derivatives of decoding"):
        jax.grad(lambda hidden: layer.topk(*trees, hidden, 2)[0].sum())(hidden)
