"""Tests of the Pallas kernels of a softmax by blocks of words."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.pallas.triton")

import jax.numpy as jnp

from tests.impls.on_jax import pallas
from vocabench.impls.on_jax.pallas import softmax_kernels

pytestmark = pytest.mark.usefixtures("no_tf32")

TOKENS, VOCAB = 2560, 44_000


@pytest.mark.many_cells
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize(
    ("tokens", "vocab", "dim", "width"),
    [(30, 700, 24, 192), (7, 128, 16, 64), (1, 90, 33, 90), (20, 100, 8, 100), (5, 65, 9, 64)],
)
def test_softmax_by_blocks_agrees_with_float64(tokens, vocab, dim, width, dtype, tolerance, monkeypatch):
    """A few words, one or none remain after the last block. Some blocks are wider than the part read at a time."""
    monkeypatch.setattr(softmax_kernels, "_COLUMNS", 64)
    monkeypatch.setattr(softmax_kernels, "_WORDS", 128)
    rng = np.random.default_rng(vocab)
    drawn = rng.normal(size=(tokens, dim)) * 3, rng.normal(size=(vocab, dim)), rng.normal(size=vocab)
    trained, dnll_N = [jnp.asarray(array, dtype) for array in drawn], rng.normal(size=tokens)
    targets_N = rng.integers(0, vocab, tokens)
    targets_N[0] = vocab - 1

    def nll(trained):
        hidden_ND, weight_VD, bias_V = trained
        inputs = hidden_ND, weight_VD, bias_V, jnp.asarray(targets_N)
        return softmax_kernels.fused_nll(*inputs, width, interpret=pallas.INTERPRET)

    nll_N, *gradients = pallas.differentiated(nll, trained, dnll_N)
    hidden_ND, weight_VD, bias_V = (np.asarray(array, np.float64) for array in trained)
    logits_NV = hidden_ND @ weight_VD.T + bias_V
    log_probs_NV = logits_NV - np.logaddexp.reduce(logits_NV, axis=1, keepdims=True)
    dlogits_NV = dnll_N[:, None] * (np.exp(log_probs_NV) - (targets_N[:, None] == np.arange(vocab)))
    expected = [dlogits_NV @ weight_VD, dlogits_NV.T @ hidden_ND, dlogits_NV.sum(axis=0)]
    pallas.close([nll_N, *gradients], [-log_probs_NV[np.arange(tokens), targets_N], *expected], tolerance)
    np.testing.assert_array_equal(jax.jit(nll)(trained), nll_N)


def test_logits_are_not_kept_from_the_forward_pass():
    tokens, vocab, dim, width = 64, 4097, 32, 512

    def nll(hidden_ND, weight_VD, bias_V):
        targets_N = jnp.zeros(tokens, jnp.int32)
        return softmax_kernels.fused_nll(
            hidden_ND, weight_VD, bias_V, targets_N, width, interpret=pallas.INTERPRET
        ).sum()

    inputs = jnp.ones((tokens, dim)), jnp.ones((vocab, dim)), jnp.ones(vocab)
    planned = jax.jit(jax.grad(nll, argnums=(0, 1, 2))).lower(*inputs).compile().memory_analysis()
    assert planned.temp_size_in_bytes < tokens * vocab * 4 / 2


def lowered(dtype, dim):
    def nll(hidden_ND, weight_VD, bias_V, targets_N):
        return softmax_kernels.fused_nll(hidden_ND, weight_VD, bias_V, targets_N, width=6528)

    return pallas.loss_for_a_gpu(nll, ((TOKENS, dim), (VOCAB, dim), (VOCAB,)), [(TOKENS,)], dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_program_for_a_gpu_has_kernels_in_the_loop_and_for_the_last_words(dtype):
    assert lowered(dtype, 512).count(pallas.TRITON) == 4


def test_kernels_do_not_depend_on_64_bit_types():
    with jax.enable_x64(True):
        assert lowered("float32", 24).count(pallas.TRITON) == 4
