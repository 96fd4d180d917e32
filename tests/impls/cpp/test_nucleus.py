"""Words drawn from the likeliest ones by the C++ kernel: the same as by sorting all words, in every framework."""

import importlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls import cpp
from vocabench.impls.calls import Sampling

if cpp.compiler() is None:
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]


def by_sorting(log_probs_NV, uniforms_N, temperature, top_p):
    """Return the words drawn, and the distance of each decision from the next in probability."""
    drawn, margins = [], []
    for log_probs_V, uniform in zip(log_probs_NV.astype(np.float64), uniforms_N, strict=True):
        weight_V = np.exp((log_probs_V - log_probs_V.max()) / temperature)
        order_V = np.lexsort((np.arange(len(weight_V)), -log_probs_V))
        sums_V = np.cumsum(weight_V[order_V] / weight_V.sum())
        count = min(np.count_nonzero(sums_V < top_p) + 1, len(sums_V))
        share = uniform * sums_V[count - 1]
        drawn.append(order_V[np.count_nonzero(sums_V[:count] <= share)])
        margins.append(min(abs(sums_V - top_p).min() if top_p < 1 else 1, abs(sums_V - share).min()))
    return np.array(drawn), np.array(margins)


def drawn_by(framework, log_probs_NV, uniforms_N, temperature, top_p):
    kernels = importlib.import_module(f"vocabench.impls.on_{framework}.ops.cpp_kernels")
    sampling = importlib.import_module(f"vocabench.impls.on_{framework}.sampling")
    array = {"torch": "from_numpy", "tensorflow": "constant", "jax": "asarray"}[framework]
    library = importlib.import_module("jax.numpy" if framework == "jax" else framework)
    given = getattr(library, array)(log_probs_NV), getattr(library, array)(uniforms_N)
    assert kernels.draws_from(given[0])
    return np.asarray(sampling.of_all(*given, Sampling(temperature=temperature, top_p=top_p)))


def assert_as_by_sorting(framework, words, scale, levels, temperature, top_p, seed):
    rng = np.random.default_rng(seed)
    values_NV = np.round(rng.standard_normal((6, words)) * levels) / levels * scale  # few levels: many equal words
    log_probs_NV = np.where(rng.random((6, words)) < 0.1, -np.inf, values_NV).astype(np.float32)
    log_probs_NV[:, rng.integers(words)] = 0.5
    uniforms_N = rng.random(6, np.float32)
    expected_N, margin_N = by_sorting(log_probs_NV, uniforms_N, max(temperature, 1e-30), np.float32(top_p))
    drawn_N = drawn_by(framework, log_probs_NV, uniforms_N, temperature, top_p)
    clear_N = margin_N > 1e-6
    np.testing.assert_array_equal(drawn_N[clear_N], expected_N[clear_N])


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("words", "temperature", "top_p"), [(20_011, 0.7, 0.9), (16, 1e-300, 0.5), (1, 40.0, 1.0)])
def test_the_words_are_those_of_a_sort(framework, words, temperature, top_p):
    assert_as_by_sorting(framework, words, 4.0, 10**6, temperature, top_p, seed=1)


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="needs torch")
@settings(max_examples=200, deadline=None)
@given(
    words=st.integers(1, 70),
    scale=st.sampled_from([0.0, 0.01, 1.0, 30.0]),
    levels=st.sampled_from([1, 3, 10**6]),
    temperature=st.sampled_from([1e-300, 0.05, 1.0, 40.0]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.999, 1.0]),
    seed=st.integers(0, 99),
)
@example(words=9, scale=0.0, levels=1, temperature=1.0, top_p=1.0, seed=0)  # all words are equally likely
def test_any_words_are_those_of_a_sort(words, scale, levels, temperature, top_p, seed):
    assert_as_by_sorting("torch", words, scale, levels, temperature, top_p, seed)


@pytest.mark.lengthy
def test_other_compilers_and_processors(compiled_otherwise):
    for words in (20_011, 9):
        assert_as_by_sorting("torch", words, 4.0, 10**6, 0.7, 0.9, seed=2)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_row_with_nan_or_without_a_word_gives_the_first_word(framework):
    log_probs_NV = np.log(np.full((4, 19), 1 / 19, np.float32))
    log_probs_NV[0, 18], log_probs_NV[1, 2], log_probs_NV[2] = np.nan, np.nan, -np.inf
    drawn_N = drawn_by(framework, log_probs_NV, np.full(4, 0.51, np.float32), 1.0, 0.9)
    assert drawn_N.tolist() == [0, 0, 0, 9]  # the last is of 18 words that are kept


@pytest.mark.many_cells
@pytest.mark.parametrize("method", ["full_softmax", "sohsm", "huffman", "adaptive_softmax"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_layer_draws_with_the_kernel(framework, method, monkeypatch):
    kernels = importlib.import_module(f"vocabench.impls.on_{framework}.ops.cpp_kernels")
    calls, nucleus = [], kernels.nucleus
    monkeypatch.setattr(kernels, "nucleus", lambda *given: calls.append(given) or nucleus(*given))
    layer = layers.create(framework, method, counts=zipf_counts(300), dim=16)
    hidden_ND = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    _ = layer.prepare("nucleus_sample", hidden_ND, np.zeros(5, np.int64))()
    assert len(calls) == 1


def test_a_gradient_beside_a_draw_is_unchanged():
    """As in policy gradients: the loss of the words that were drawn in the same function."""
    jax = pytest.importorskip("jax")
    from vocabench.impls.on_jax.native import native

    layer = native(layers.spec("full_softmax", counts=zipf_counts(300), dim=16))
    params, structure = layer.init()
    hidden_ND = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    uniforms_NU = np.full((5, 1), 0.5, np.float32)

    def loss(params, words_N=None):
        drawn_N = layer.sample(params, structure, hidden_ND, uniforms_NU, top_p=0.9) if words_N is None else words_N
        return layer.loss(params, structure, hidden_ND, drawn_N)

    words_N = layer.sample(params, structure, hidden_ND, uniforms_NU, top_p=0.9)
    made, expected = jax.jit(jax.grad(loss))(params), jax.grad(loss)(params, words_N)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), made, expected)
    drawn = jax.vmap(lambda hidden_D, u: layer.sample(params, structure, hidden_D[None], u[None], top_p=0.9)[0])
    np.testing.assert_array_equal(drawn(hidden_ND, uniforms_NU), words_N)
