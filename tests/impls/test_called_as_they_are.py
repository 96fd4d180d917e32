"""Native layers that decode by operations called one by one, as in a notebook: no `tf.function` around them."""

import dataclasses
import importlib

import numpy as np
import pytest

from vocabench.harness import layers
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.cpp import CPP

pytestmark = pytest.mark.many_cells

FRAMEWORKS = ("torch", "tensorflow")  # JAX compiles what it is given, called as it is too
TWO_LEVELS = [("sohsm", {}), ("sohsm", {"projection": "none", "bias": True}), ("class_hsm", {"classes": 90})]


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    pytest.importorskip(request.param)
    return request.param


def made(framework, method, vocab, kernels=None, **options):
    """The native layer, by C++ kernels or not where that is said, and the definition's."""
    adapter = importlib.import_module(f"vocabench.impls.on_{framework}.adapter")
    spec = layers.spec(method, counts=zipf_counts(vocab), dim=4, **options)
    oracle = layers.from_spec("numpy", dataclasses.replace(spec, dtype="float64"))
    if kernels is None:
        return adapter.native(spec), oracle
    forms = [form for form in adapter.forms(spec) if (form == CPP) == kernels]
    if not forms:
        pytest.skip("the C++ kernels cannot be compiled here")
    return adapter.native(dataclasses.replace(spec, form=forms[0].id)), oracle


def as_tensor(framework, array):
    if framework == "torch":
        import torch

        return torch.from_numpy(array)
    import tensorflow as tf

    return tf.constant(array)


@pytest.mark.parametrize(("method", "options"), TWO_LEVELS, ids=str)
@pytest.mark.parametrize("kernels", [False, True], ids=["operations", "kernels"])
@pytest.mark.parametrize("flat", [True, False], ids=["flat", "steep"])
def test_they_decode_whatever_few_rows_want(framework, method, options, kernels, flat):
    """One row of which all clusters are wanted, or some; groups of classes that no row wants."""
    native, oracle = made(framework, method, 7000, kernels, **options)
    rng = np.random.default_rng(0)
    for rows in (1, 2, 5):
        hidden_ND = (rng.standard_normal((rows, 4)) * (0.1 if flat else 6.0)).astype(np.float32)
        uniforms_NU = rng.random((rows, oracle.spec.draws)).astype(np.float32)
        hidden, uniforms = as_tensor(framework, hidden_ND), as_tensor(framework, uniforms_NU)
        values_NK, ids_NK = (np.asarray(array) for array in native.topk(hidden, 10))
        log_NV = oracle.log_probs(hidden_ND)
        np.testing.assert_allclose(values_NK, -np.sort(-log_NV, axis=1)[:, :10], rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(values_NK, np.take_along_axis(log_NV, ids_NK, axis=1), rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(native.sample(hidden, uniforms), oracle.sample(hidden_ND, uniforms_NU))


@pytest.mark.parametrize("method", ["full_softmax", "fused_softmax", "sohsm", "class_hsm", "adaptive_softmax"])
def test_what_is_drawn_by_no_numbers_is_a_word(framework, method):
    """A model that has diverged is told by its loss, not by an index that nobody has asked for."""
    native, oracle = made(framework, method, 300)
    hidden_ND = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    uniforms_NU = np.random.default_rng(1).random((3, oracle.spec.draws)).astype(np.float32)
    wanted_N = oracle.sample(hidden_ND, uniforms_NU)
    hidden_ND[1, 2] = np.nan
    drawn_N = np.asarray(native.sample(as_tensor(framework, hidden_ND), as_tensor(framework, uniforms_NU)))
    assert 0 <= drawn_N[1] < 300
    np.testing.assert_array_equal(drawn_N[[0, 2]], wanted_N[[0, 2]])
