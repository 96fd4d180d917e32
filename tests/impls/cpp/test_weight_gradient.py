"""The gradient with respect to few words by the C++ kernels: its precision, and its use in layers."""

import dataclasses
import importlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls import cpp
from vocabench.impls.cpp import CPP, processor

torch = pytest.importorskip("torch")

from vocabench.impls.on_torch.ops import cpp_kernels, products

if cpp.compiler() is None:
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)

FRAMEWORKS = [name for name in registry.installed_frameworks() if name in ("torch", "jax")]


def _check(tokens, words, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    dscores_NV, hidden_ND = (torch.randn(tokens, count, generator=generator) for count in (words, dim))
    gradient_VD = cpp_kernels.weight_gradient(dscores_NV, hidden_ND)
    torch.testing.assert_close(gradient_VD.double(), dscores_NV.double().T @ hidden_ND.double(), rtol=1e-5, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 90), st.integers(1, 60), st.integers(1, 150), st.integers(0, 9))
@example(600, 13, 40, 0)  # more tokens than a block
@example(3, 1, 16, 0)  # fewer words than threads
def test_random_sizes(tokens, words, dim, seed):
    _check(tokens, words, dim, seed)


@pytest.mark.lengthy
@pytest.mark.parametrize("dim", [128, 7])
def test_other_compilers_and_processors(compiled_otherwise, dim):
    _check(300, 27, dim, 1)


@pytest.fixture
def kernels_for_all_gradients(monkeypatch):
    """Make layers use the kernel for gradients of any size, on any processor."""
    monkeypatch.setattr(cpp, "multiplies_fastest", lambda: False)
    monkeypatch.setattr(cpp, "differentiates_fastest", lambda *sizes: True)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "_LARGE", 0)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("projection", ["relu", "residual"])
def test_layers_agree_with_their_definition(framework, projection, kernels_for_all_gradients, monkeypatch):
    module = importlib.import_module(f"vocabench.impls.on_{framework}.ops.cpp_kernels")
    name = "weight_gradient" if framework == "torch" else "_weight_gradient"
    calls, gradient = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args: calls.append(args) or gradient(*args))
    spec = layers.spec("sohsm", counts=zipf_counts(400), dim=40, seed=2, bias=True, projection=projection)
    layer = layers.from_spec(framework, dataclasses.replace(spec, form=CPP.id))
    checks = agreement.check_layer(layer, batch(spec.counts, tokens=60, dim=40, seed=2), k=12)
    assert [str(check) for check in checks if not check.agrees] == []
    assert len(calls) >= 3  # both projections and the clusters


def _torch_squares(linear, factors):
    factors = [torch.tensor(factor, requires_grad=True) for factor in factors]
    loss = torch.log_softmax(linear(*factors), 1).square().sum()
    first = torch.autograd.grad(loss, factors, create_graph=True)
    return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), factors)


def _jax_squares(linear, factors):
    import jax

    def squares(factors):
        gradients = jax.grad(lambda factors: (jax.nn.log_softmax(linear(*factors)) ** 2).sum())(factors)
        return sum((gradient**2).sum() for gradient in gradients)

    return jax.jit(jax.grad(squares))(factors)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_second_derivatives(framework, kernels_for_all_gradients):
    rng = np.random.default_rng(0)
    factors = [rng.normal(size=size).astype(np.float32) for size in ((17, 9), (23, 9))]
    if framework == "torch":
        ours, plain = (lambda *factors: products.linear(*factors, kernels=True)), torch.nn.functional.linear
        squares = _torch_squares
    else:
        ours, plain = (
            importlib.import_module("vocabench.impls.on_jax.ops.cpp_kernels").linear,
            lambda hidden, weight: hidden @ weight.T,
        )
        squares = _jax_squares
    for actual, expected in zip(squares(ours, factors), squares(plain, factors), strict=True):
        np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-3, atol=1e-3)


def test_the_kernel_is_fastest_for_few_words_and_many_tokens_on_amd_with_avx512(monkeypatch):

    def fastest(vendor, *features, sizes=(2560, 512, 512)):
        for function in (cpp._is_amds_avx512, processor.has):
            function.cache_clear()
        monkeypatch.setattr(processor, "lines", lambda: (f"vendor_id\t: {vendor}", f"flags\t: {' '.join(features)}"))
        return cpp.differentiates_fastest(*sizes)

    try:
        assert fastest("AuthenticAMD", "avx2", "avx512f")
        assert not fastest("AuthenticAMD", "avx2", "avx512f", sizes=(2560, 4096, 512))
        assert not fastest("AuthenticAMD", "avx2", "avx512f", sizes=(64, 512, 512))
        assert not fastest("AuthenticAMD", "avx2")
        assert not fastest("GenuineIntel", "avx2", "avx512f")
        monkeypatch.setenv("CXX", "no-such-compiler")
        assert not fastest("AuthenticAMD", "avx2", "avx512f")
    finally:
        for function in (cpp._is_amds_avx512, processor.has):
            function.cache_clear()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_row_of_adaptive_softmax_names_the_kernels(framework, monkeypatch):
    monkeypatch.setattr(cpp, "multiplies_fastest", lambda: False)
    layer = layers.create(framework, "adaptive_softmax", counts=zipf_counts(400), dim=16)
    for amd, formulation in ((True, f"gradients of large products by {CPP}"), (False, "")):
        monkeypatch.setattr(cpp, "_is_amds_avx512", lambda amd=amd: amd)
        assert layer.formulation() == formulation
