"""Products of float32 matrices by the C++ kernels: their precision for any memory layout, and their use in layers.

They use a bfloat16 matrix unit, or emulate it where there is none.
"""

import dataclasses
import importlib
import subprocess
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls import cpp
from vocabench.impls.cpp import CPP, compilation, processor

torch = pytest.importorskip("torch")

from vocabench.impls.on_torch.ops import cpp_kernels, products

if cpp.compiler() is None:
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)
if not cpp.multiplies_fastest() and processor.has("amx_bf16"):
    pytest.skip("needs permission to use the matrix unit of the processor", allow_module_level=True)


def _check(rows, depth, columns, left_by_columns, right_by_columns, seed):
    """Check that the error of each sum is within float32 roundings of its terms."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(count, by_columns):
        size = (depth, count) if by_columns else (count, depth)
        values = torch.randn(size, generator=generator) * 2.0 ** torch.randint(-9, 9, size, generator=generator)
        return values.T if by_columns else values

    left_ND, right_VD = matrix(rows, left_by_columns), matrix(columns, right_by_columns)
    product_NV = cpp_kernels.matrix_product(left_ND, right_VD).double()
    left_ND, right_VD = left_ND.double(), right_VD.double()
    bound_NV = (left_ND.abs() @ right_VD.abs().T) * 2.0**-20
    assert product_NV.shape == bound_NV.shape
    assert ((product_NV - left_ND @ right_VD.T).abs() <= bound_NV).all()


@settings(deadline=None)
@given(st.integers(1, 70), st.integers(1, 140), st.integers(1, 70), st.booleans(), st.booleans(), st.integers(0, 99))
@example(1, 1, 1, False, False, 0)
@example(48, 1100, 33, True, True, 0)  # deeper than a block
@example(600, 40, 20, False, True, 0)  # more rows than a block
def test_sums_have_float32_precision(rows, depth, columns, left_by_columns, right_by_columns, seed):
    _check(rows, depth, columns, left_by_columns, right_by_columns, seed)


@pytest.mark.lengthy
@pytest.mark.parametrize("by_columns", [False, True])
def test_sums_with_other_compilers_and_processors(compiled_otherwise, by_columns):
    _check(50, 70, 35, by_columns, not by_columns, 1)
    _check(32, 64, 48, by_columns, by_columns, 1)


def test_a_product_with_ones_keeps_all_24_bits():
    exponents = torch.arange(-100, 120)
    values_N1 = (1 + torch.rand(220, generator=torch.Generator().manual_seed(0)))[:, None] * 2.0 ** exponents[:, None]
    values_N1[::2] *= -1
    assert torch.equal(cpp_kernels.matrix_product(values_N1, torch.ones(1, 1)), values_N1)


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0x7F800001, -1, -0x400000])
def test_nan_stays_nan(bits):
    """Rounding by adding to the bits could overflow into the sign."""
    nan_11 = torch.tensor([[bits]], dtype=torch.int32).view(torch.float32)
    assert nan_11.isnan().all()
    assert cpp_kernels.matrix_product(nan_11, torch.ones(1, 1)).isnan().all()
    assert cpp_kernels.matrix_product(torch.ones(1, 1), nan_11).isnan().all()


def test_nan_and_infinity_affect_only_their_row_and_column():
    left_ND, right_VD = torch.ones(40, 35), torch.ones(20, 35)
    left_ND[3, 7], right_VD[5, 34] = torch.nan, torch.inf
    product_NV = cpp_kernels.matrix_product(left_ND, right_VD)
    assert not torch.isfinite(product_NV[3]).any()
    assert not torch.isfinite(product_NV[:, 5]).any()
    rows, columns = ([index for index in range(size) if index != excluded] for size, excluded in ((40, 3), (20, 5)))
    assert (product_NV[rows][:, columns] == 35).all()


def test_empty_sums_are_zero():
    assert torch.equal(cpp_kernels.matrix_product(torch.ones(3, 0), torch.ones(2, 0)), torch.zeros(3, 2))
    assert cpp_kernels.matrix_product(torch.ones(0, 4), torch.ones(2, 4)).shape == (0, 2)
    assert cpp_kernels.matrix_product(torch.ones(3, 4), torch.ones(0, 4)).shape == (3, 0)


@pytest.fixture
def kernels_for_all_products(monkeypatch):
    """Make layers use the kernels for products of any size, on any processor."""
    monkeypatch.setattr(cpp, "multiplies_fastest", lambda: True)
    monkeypatch.setattr(cpp, "is_worth_splitting", lambda *sizes: True)


FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
LAYERS = {
    "sohsm": {"bias": True},
    "sohsm, residual": {"bias": True, "projection": "residual"},
    "adaptive_softmax": {},
}


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_agree_with_their_definition(framework, name, kernels_for_all_products, monkeypatch):
    module, function = (
        f"vocabench.impls.on_{framework}.ops.cpp_kernels",
        "matrix_product" if framework == "torch" else "_product",
    )
    calls, product = [], getattr(importlib.import_module(module), function)

    def counted(*args, **options):
        calls.append(args)
        return product(*args, **options)

    monkeypatch.setattr(f"{module}.{function}", counted)
    spec = layers.spec(name.partition(",")[0], counts=zipf_counts(400), dim=40, seed=2, **LAYERS[name])
    layer = layers.from_spec(framework, dataclasses.replace(spec, form=CPP.id if name.startswith("sohsm") else ""))
    checks = agreement.check_layer(layer, batch(spec.counts, tokens=60, dim=40, seed=2), k=12)
    assert [str(check) for check in checks if not check.agrees] == []
    assert len(calls) >= 3  # a product and both of its gradients
    assert layer.formulation() == f"{CPP}, large products by AMX"


def _torch_squares(factors, weights_NV, *, kernels):
    hidden_ND, weight_VD = (torch.tensor(factor, requires_grad=True) for factor in factors)
    log_NV = torch.log_softmax(products.linear(hidden_ND, weight_VD, kernels=kernels), 1)
    loss = (log_NV * torch.from_numpy(weights_NV)).sum()
    first = torch.autograd.grad(loss, (hidden_ND, weight_VD), create_graph=True)
    return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), (hidden_ND, weight_VD))


def _tensorflow_squares(factors, weights_NV, *, kernels):
    import tensorflow as tf

    from vocabench.impls.on_tensorflow.ops import cpp_kernels, tensors

    product = cpp_kernels.linear if kernels else tensors.product
    variables = [tf.Variable(factor) for factor in factors]
    with tf.GradientTape() as second:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.log_softmax(product(*variables)) * weights_NV)
        first: Any = tape.gradient(loss, variables)
        squares = tf.add_n([tf.reduce_sum(gradient**2) for gradient in first])
    return second.gradient(squares, variables)


def _jax_squares(factors, weights_NV, *, kernels):
    import jax
    import jax.numpy as jnp

    from vocabench.impls.on_jax.ops import arrays, cpp_kernels

    product = cpp_kernels.linear if kernels else arrays.product

    def loss(factors):
        return (jax.nn.log_softmax(product(*factors)) * weights_NV).sum()

    def squares(factors):
        return sum((gradient**2).sum() for gradient in jax.grad(loss)(factors))

    return jax.jit(jax.grad(squares))(tuple(jnp.asarray(factor) for factor in factors))


SECOND_GRADIENTS = {"torch": _torch_squares, "tensorflow": _tensorflow_squares, "jax": _jax_squares}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_second_derivatives(framework, kernels_for_all_products):
    rng = np.random.default_rng(0)
    factors = [rng.normal(size=size).astype(np.float32) for size in ((17, 9), (23, 9))]
    weights_NV = rng.normal(size=(17, 23)).astype(np.float32)
    actual, expected = (SECOND_GRADIENTS[framework](factors, weights_NV, kernels=kernels) for kernels in (True, False))
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-3, atol=1e-3)


def test_only_large_products_are_split():
    assert cpp.is_worth_splitting(2560, 512, 512)
    assert cpp.is_worth_splitting(512, 2560, 512)
    assert not cpp.is_worth_splitting(2560, 512, 100)
    assert not cpp.is_worth_splitting(2560, 100, 512)


def test_fused_softmax_uses_the_vector_units_for_few_or_narrow_vectors(monkeypatch):
    monkeypatch.setattr(cpp, "multiplies_fastest", lambda: True)
    assert cpp.fuses_by_unit(2560, 196, 512)
    assert cpp.fuses_by_unit(2560, 300, 256)
    assert not cpp.fuses_by_unit(16, 196, 512)
    assert not cpp.fuses_by_unit(2560, 16, 512)
    assert not cpp.fuses_by_unit(2560, 571, 128)
    monkeypatch.setattr(cpp, "multiplies_fastest", lambda: False)
    assert not cpp.fuses_by_unit(2560, 196, 512)


@pytest.fixture
def empty_caches():
    for function in (cpp.multiplies_fastest, processor.has):
        function.cache_clear()
    yield
    for function in (cpp.multiplies_fastest, processor.has):
        function.cache_clear()


def test_products_need_a_unit_and_a_compiler_that_supports_it(empty_caches, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(processor, "has", lambda *features: features == ("avx2",))
        assert not cpp.multiplies_fastest()
    cpp.multiplies_fastest.cache_clear()
    monkeypatch.setattr(processor, "has", lambda *features: True)
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler")
        assert not cpp.multiplies_fastest()
    cpp.multiplies_fastest.cache_clear()
    for output in ("#define __AVX2__ 1\n", subprocess.CalledProcessError(1, ["g++"])):
        with monkeypatch.context() as patch:

            def run(*command, output=output):
                if isinstance(output, str):
                    return output
                raise output

            patch.setattr(compilation, "run", run)
            assert not cpp.multiplies_fastest()
        cpp.multiplies_fastest.cache_clear()
