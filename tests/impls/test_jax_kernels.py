"""The Pallas kernels of JAX's two-level layers: by Pallas' interpreter, and as what Triton is given for a GPU."""

import dataclasses
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness import layers
from harness.workload import batch, zipf_counts

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.pallas.triton")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh  # noqa: E402

from impls.on_jax import _cluster_kernels, _cpp, _pallas, adapter  # noqa: E402
from impls.on_jax._pallas import KERNELS  # noqa: E402

H200 = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", 132, "gpu"))


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    """Kernels for CPUs, which take their time to compile, are not asked for here."""
    monkeypatch.setattr(_cpp, "known", lambda dtype: False)


@pytest.fixture
def few_programs(monkeypatch):
    """So that one deals with several tiles of a cluster's tokens, and looks at them in several parts, where these are
    few; the interpreter has less to do, too."""
    monkeypatch.setattr(_cluster_kernels, "_PROGRAMS", 2)
    monkeypatch.setattr(_cluster_kernels, "_SORTED", 64)


def drawn(biased, tokens, clusters, width, dim) -> tuple[Any, Any, Any]:
    """What is trained, the rest, and the loss's gradient; some clusters have most tokens, some none, one no word."""
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
    return trained, [jnp.asarray(a, jnp.int32) for a in (word_CS, cluster_N, slot_N)], rng.normal(size=tokens)


def exact(trained, fixed, dnll_N) -> list[Any]:
    """Losses and gradients in float64, token by token."""
    hidden_ND, slab_CSD, bias_CS = jax.tree.map(lambda a: np.asarray(a, np.float64), trained)
    word_CS, cluster_N, slot_N = (np.asarray(a) for a in fixed)
    nll_N, dhidden_ND, dslab_CSD = np.zeros(len(hidden_ND)), np.zeros_like(hidden_ND), np.zeros_like(slab_CSD)
    dbias_CS = np.zeros(word_CS.shape)
    for token in np.flatnonzero(cluster_N < len(slab_CSD)):
        own, slot = cluster_N[token], slot_N[token]
        scores_S = slab_CSD[own] @ hidden_ND[token] + (0 if bias_CS is None else bias_CS[own])
        probability_S = np.where(word_CS[own] < 0, 0, np.exp(scores_S))
        probability_S /= probability_S.sum()
        nll_N[token] = -np.log(probability_S[slot])
        dscores_S = dnll_N[token] * (probability_S - (np.arange(len(scores_S)) == slot))
        dhidden_ND[token] = dscores_S @ slab_CSD[own]
        dslab_CSD[own] += np.outer(dscores_S, hidden_ND[token])
        dbias_CS[own] += dscores_S
    return [nll_N, dhidden_ND, dslab_CSD, *([] if bias_CS is None else [dbias_CS])]


@pytest.mark.parametrize(
    ("sizes", "biased", "dtype", "tolerance"),
    [
        ((50, 7, 40, 24), True, "float32", 1e-5),
        ((1, 3, 8, 16), False, "float32", 1e-5),
        ((150, 3, 37, 201), False, "float32", 1e-5),
        ((150, 3, 37, 201), True, "bfloat16", 2e-2),
    ],
)
def test_softmax_within_clusters(sizes, biased, dtype, tolerance, few_programs):
    trained, fixed, dnll_N = drawn(biased, *sizes)
    trained = jax.tree.map(lambda a: jnp.asarray(a, dtype), trained)

    def nll(trained):
        return _cluster_kernels.in_cluster_nll(*trained, *fixed, interpret=True)

    @jax.jit
    def differentiated(trained, dnll_N):
        nll_N, gradients = jax.vjp(nll, trained)
        return nll_N, *jax.tree.leaves(gradients(dnll_N))

    found = differentiated(trained, jnp.asarray(dnll_N, jnp.float32))
    for ours, wanted in zip(found, exact(trained, fixed, dnll_N), strict=True):
        assert np.abs(np.asarray(ours, np.float64) - wanted).max() <= tolerance * np.abs(wanted).max()
    assert not np.asarray(found[2], np.float64)[np.asarray(fixed[0]) < 0].any()
    np.testing.assert_array_equal(jax.jit(nll)(trained), found[0])


@pytest.mark.parametrize(("method", "options"), [("sohsm", {"bias": True}), ("class_hsm", {})])
def test_layers_of_kernels_agree_with_their_definition(method, options, few_programs, monkeypatch):
    monkeypatch.setattr(_pallas, "known", lambda dtype, dim: True)
    interpreted = partial(_cluster_kernels.in_cluster_nll, interpret=True)
    monkeypatch.setattr(_cluster_kernels, "in_cluster_nll", interpreted)
    spec = layers.spec(method, counts=zipf_counts(97), dim=24, seed=5, **options)
    ours = layers.from_spec("jax", dataclasses.replace(spec, form=KERNELS))
    assert KERNELS in ours.formulation()
    inputs = batch(spec.counts, tokens=60, dim=24, seed=5)
    loss, dhidden_ND, grads = ours.loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    oracle = layers.from_spec("numpy", dataclasses.replace(spec, dtype="float64"))
    wanted_loss, wanted_ND, wanted = oracle.loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    np.testing.assert_allclose(loss, wanted_loss, rtol=1e-5)
    np.testing.assert_allclose(dhidden_ND, wanted_ND, atol=1e-5 * np.abs(wanted_ND).max())
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, wanted[name], atol=1e-5 * np.abs(wanted[name]).max(), err_msg=name)


def lowered(dtype, width, dim):
    """Forward and backward as they are for a GPU, which is not asked."""
    clusters, tokens, kind = 210, 2560, adapter.JAX_DTYPES[dtype]
    shapes = (tokens, dim), (clusters, width, dim), (clusters, width)
    trained = [jax.ShapeDtypeStruct(shape, kind) for shape in shapes]
    fixed = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((clusters, width), (tokens,), (tokens,))]

    def loss(trained, fixed):
        return _cluster_kernels.in_cluster_nll(*trained, *fixed).sum()

    with use_abstract_mesh(H200):
        traced = jax.jit(jax.value_and_grad(loss)).trace(trained, fixed)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("dtype", "width", "dim", "tf32"), [("bfloat16", 320, 512, 0), ("tf32", 77, 1000, 3), ("float32", 320, 512, 0)]
)
def test_a_gpu_is_given_kernels_of_the_precision_that_is_asked_for(dtype, width, dim, tf32, monkeypatch, capsys):
    """They have loops and products that Triton knows."""
    monkeypatch.setattr(_cluster_kernels.pl, "pallas_call", partial(_cluster_kernels.pl.pallas_call, debug=True))
    with adapter.precision(dtype):
        program = lowered(dtype, width, dim)
    kernels = capsys.readouterr().out
    assert program.count("__gpu$xla.gpu.triton") == 3
    assert kernels.count("tt.dot") == 3
    assert kernels.count("inputPrecision = tf32") == tf32
    assert kernels.count("scf.for") == 5
    assert "scf.while" not in kernels


def test_a_program_may_ask_jax_for_64_bits():
    with jax.enable_x64(True):
        assert lowered("float32", 40, 24).count("__gpu$xla.gpu.triton") == 3


def gpu(capability, kib):
    return SimpleNamespace(compute_capability=capability, shared_memory_per_block_optin=kib * 2**10)


H100, RTX_4090, T4, MI300 = gpu("9.0", 227), gpu("8.9", 99), gpu("7.5", 64), gpu("gfx942", 0)


@pytest.mark.parametrize(
    ("device", "method", "dim", "dtype", "there"),
    [
        (H100, "sohsm", 2048, "bfloat16", True),
        (H100, "class_hsm", 2049, "bfloat16", False),
        (H100, "class_hsm", 1024, "tf32", True),
        (H100, "sohsm", 1032, "float32", False),
        (H100, "sohsm", 64, "float64", False),
        (H100, "full_softmax", 64, "float32", False),
        (RTX_4090, "sohsm", 1024, "bfloat16", True),
        (RTX_4090, "sohsm", 520, "float32", False),
        (T4, "sohsm", 64, "float32", False),
        (MI300, "sohsm", 64, "float32", False),
    ],
)
def test_kernels_come_first_on_a_gpu_with_room_for_them(device, method, dim, dtype, there, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    spec = layers.spec(method, counts=zipf_counts(9), dim=dim, dtype=dtype)
    assert (KERNELS in layers.forms("jax", spec, "cuda")[:1]) == there
    assert (adapter.native(spec).form == KERNELS) == there
    assert KERNELS not in layers.forms("jax", spec)
    assert adapter.native(spec, SimpleNamespace(platform="cpu")).form != KERNELS


def test_a_machine_without_a_gpu_has_none_of_them():
    if jax.default_backend() == "gpu":
        pytest.skip("here is one")
    assert KERNELS not in layers.forms("jax", layers.spec("sohsm", counts=zipf_counts(9), dim=8), "cuda")
