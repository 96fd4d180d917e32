"""The C++ kernels' products of float32 matrices by a unit for bfloat16, or by the same numbers one by one where there
is none: as near to float64 as float32 comes, however the factors lie, and in the three frameworks' layers."""

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
from vocabench.impls.cpp import CPP

torch = pytest.importorskip("torch")

from vocabench.impls.on_torch.ops import cpp_kernels, products

if not cpp_kernels.known(torch.float32):
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)
if not cpp.multiplies_fastest() and cpp._has("amx_bf16"):
    pytest.skip("needs leave to use the processor's unit for matrices", allow_module_level=True)


def _check(rows, depth, columns, left_by_columns, right_by_columns, seed):
    """Each sum within float32's roundings of the numbers that it is the sum of."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(count, by_columns):
        size = (depth, count) if by_columns else (count, depth)
        numbers = torch.randn(size, generator=generator) * 2.0 ** torch.randint(-9, 9, size, generator=generator)
        return numbers.T if by_columns else numbers

    left_ND, right_VD = matrix(rows, left_by_columns), matrix(columns, right_by_columns)
    found_NV = cpp_kernels.matrix_product(left_ND, right_VD).double()
    left_ND, right_VD = left_ND.double(), right_VD.double()
    most_NV = (left_ND.abs() @ right_VD.abs().T) * 2.0**-20
    assert found_NV.shape == most_NV.shape
    assert ((found_NV - left_ND @ right_VD.T).abs() <= most_NV).all()


@settings(deadline=None)
@given(st.integers(1, 70), st.integers(1, 140), st.integers(1, 70), st.booleans(), st.booleans(), st.integers(0, 99))
@example(1, 1, 1, False, False, 0)
@example(48, 1100, 33, True, True, 0)  # more numbers than a block's parts are made of at once
@example(600, 40, 20, False, True, 0)  # more rows than a block's
def test_sums_are_float32s(rows, depth, columns, left_by_columns, right_by_columns, seed):
    _check(rows, depth, columns, left_by_columns, right_by_columns, seed)


@pytest.mark.parametrize("by_columns", [False, True])
def test_sums_of_either_compiler(compiled_otherwise, by_columns):
    _check(50, 70, 35, by_columns, not by_columns, 1)
    _check(32, 64, 48, by_columns, by_columns, 1)


def test_no_number_is_lost_of_a_float32():
    """A product with ones is the number itself, all 24 bits of it, small or large."""
    exponents = torch.arange(-100, 120)
    numbers_N1 = (1 + torch.rand(220, generator=torch.Generator().manual_seed(0)))[:, None] * 2.0 ** exponents[:, None]
    numbers_N1[::2] *= -1
    assert torch.equal(cpp_kernels.matrix_product(numbers_N1, torch.ones(1, 1)), numbers_N1)


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0x7F800001, -1, -0x400000])
def test_every_nan_stays_one(bits):
    """Rounding by adding to the bits would carry over into the sign of some."""
    nan_11 = torch.tensor([[bits]], dtype=torch.int32).view(torch.float32)
    assert nan_11.isnan().all()
    assert cpp_kernels.matrix_product(nan_11, torch.ones(1, 1)).isnan().all()
    assert cpp_kernels.matrix_product(torch.ones(1, 1), nan_11).isnan().all()


def test_what_is_no_number_stays_none_and_harms_no_other():
    left_ND, right_VD = torch.ones(40, 35), torch.ones(20, 35)
    left_ND[3, 7], right_VD[5, 34] = torch.nan, torch.inf
    found_NV = cpp_kernels.matrix_product(left_ND, right_VD)
    assert not torch.isfinite(found_NV[3]).any()
    assert not torch.isfinite(found_NV[:, 5]).any()
    others = [row for row in range(40) if row != 3]
    assert (found_NV[others][:, [column for column in range(20) if column != 5]] == 35).all()


def test_sums_of_nothing_are_zeros():
    assert torch.equal(cpp_kernels.matrix_product(torch.ones(3, 0), torch.ones(2, 0)), torch.zeros(3, 2))
    assert cpp_kernels.matrix_product(torch.ones(0, 4), torch.ones(2, 4)).shape == (0, 2)
    assert cpp_kernels.matrix_product(torch.ones(3, 4), torch.ones(0, 4)).shape == (3, 0)


@pytest.fixture
def every_product(monkeypatch):
    """Taken by layers, of whatever size and wherever they run."""
    monkeypatch.setattr(cpp, "multiplies_fastest", lambda: True)
    monkeypatch.setattr(cpp, "is_worth_splitting", lambda *sizes: True)


LAYERS = {
    "sohsm": {"bias": True},
    "sohsm, residual": {"bias": True, "projection": "residual"},
    "adaptive_softmax": {},
}


@pytest.mark.parametrize("framework", [name for name in registry.installed_frameworks() if name != "numpy"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_agree_with_their_definition(framework, name, every_product, monkeypatch):
    module, function = (
        f"vocabench.impls.on_{framework}.ops.cpp_kernels",
        "matrix_product" if framework == "torch" else "_product",
    )
    made, product = [], getattr(importlib.import_module(module), function)

    def counted(*given, **further):
        made.append(given)
        return product(*given, **further)

    monkeypatch.setattr(f"{module}.{function}", counted)
    spec = layers.spec(name.partition(",")[0], counts=zipf_counts(400), dim=40, seed=2, **LAYERS[name])
    layer = layers.from_spec(framework, dataclasses.replace(spec, form=CPP if name.startswith("sohsm") else ""))
    found = agreement.check_layer(layer, batch(spec.counts, tokens=60, dim=40, seed=2), k=12)
    assert [str(check) for check in found if not check.agrees] == []
    assert len(made) >= 3  # a product and both of its gradients
    assert layer.formulation() == f"{CPP}, large products by AMX"


def _of_torch(factors, weights_NV, *, kernels):
    hidden_ND, weight_VD = (torch.tensor(factor, requires_grad=True) for factor in factors)
    log_NV = torch.log_softmax(products.linear(hidden_ND, weight_VD, kernels=kernels), 1)
    loss = (log_NV * torch.from_numpy(weights_NV)).sum()
    first = torch.autograd.grad(loss, (hidden_ND, weight_VD), create_graph=True)
    return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), (hidden_ND, weight_VD))


def _of_tensorflow(factors, weights_NV, *, kernels):
    import tensorflow as tf

    from vocabench.impls.on_tensorflow import layer as _layer
    from vocabench.impls.on_tensorflow.ops import cpp_kernels

    product = cpp_kernels.linear if kernels else _layer.product
    variables = [tf.Variable(factor) for factor in factors]
    with tf.GradientTape() as second:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.log_softmax(product(*variables)) * weights_NV)
        first: Any = tape.gradient(loss, variables)
        squares = tf.add_n([tf.reduce_sum(gradient**2) for gradient in first])
    return second.gradient(squares, variables)


def _of_jax(factors, weights_NV, *, kernels):
    import jax
    import jax.numpy as jnp

    from vocabench.impls.on_jax import layer as _layer
    from vocabench.impls.on_jax.ops import cpp_kernels

    product = cpp_kernels.linear if kernels else _layer.product

    def loss(factors):
        return (jax.nn.log_softmax(product(*factors)) * weights_NV).sum()

    def squares(factors):
        return sum((gradient**2).sum() for gradient in jax.grad(loss)(factors))

    return jax.jit(jax.grad(squares))(tuple(jnp.asarray(factor) for factor in factors))


SECOND = {"torch": _of_torch, "tensorflow": _of_tensorflow, "jax": _of_jax}


@pytest.mark.parametrize("framework", [name for name in registry.installed_frameworks() if name != "numpy"])
def test_gradients_of_gradients(framework, every_product):
    rng = np.random.default_rng(0)
    factors = [rng.normal(size=size).astype(np.float32) for size in ((17, 9), (23, 9))]
    weights_NV = rng.normal(size=(17, 23)).astype(np.float32)
    ours, theirs = (SECOND[framework](factors, weights_NV, kernels=kernels) for kernels in (True, False))
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-3, atol=1e-3)


def test_only_large_products_are_worth_splitting_their_factors():
    assert cpp.is_worth_splitting(2560, 512, 512)
    assert cpp.is_worth_splitting(512, 2560, 512)
    assert not cpp.is_worth_splitting(2560, 512, 100)
    assert not cpp.is_worth_splitting(2560, 100, 512)


def test_fused_softmax_of_few_or_narrow_vectors_stays_with_the_vector_units(monkeypatch):
    monkeypatch.setattr(cpp, "multiplies_fastest", lambda: True)
    assert cpp.fuses_by_unit(2560, 196, 512)
    assert cpp.fuses_by_unit(2560, 300, 256)
    assert not cpp.fuses_by_unit(16, 196, 512)
    assert not cpp.fuses_by_unit(2560, 16, 512)
    assert not cpp.fuses_by_unit(2560, 571, 128)
    monkeypatch.setattr(cpp, "multiplies_fastest", lambda: False)
    assert not cpp.fuses_by_unit(2560, 196, 512)


@pytest.fixture
def asked_anew():
    for found in (cpp.multiplies_fastest, cpp._has):
        found.cache_clear()
    yield
    for found in (cpp.multiplies_fastest, cpp._has):
        found.cache_clear()


def test_without_a_unit_a_compiler_or_one_that_knows_it_products_are_the_frameworks(asked_anew, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(cpp, "_has", lambda *features: features == ("avx2",))
        assert not cpp.multiplies_fastest()
    cpp.multiplies_fastest.cache_clear()
    monkeypatch.setattr(cpp, "_has", lambda *features: True)
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler")
        assert not cpp.multiplies_fastest()
    cpp.multiplies_fastest.cache_clear()
    for said in ("#define __AVX2__ 1\n", subprocess.CalledProcessError(1, ["g++"])):
        with monkeypatch.context() as patch:

            def run(*command, said=said):
                if isinstance(said, str):
                    return said
                raise said

            patch.setattr(cpp, "_run", run)
            assert not cpp.multiplies_fastest()
        cpp.multiplies_fastest.cache_clear()
