"""Tests of layers with Pallas kernels, on a GPU or with Pallas' interpreter, and of where the kernels are available."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from vocabench.harness import layers
from vocabench.harness.measure.workload import batch, zipf_counts

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.pallas.triton")

import jax.numpy as jnp

from tests.impls.on_jax.pallas import INTERPRET
from vocabench.impls.on_jax.native import native
from vocabench.impls.on_jax.ops import cpp_kernels, sparse_rows
from vocabench.impls.on_jax.pallas import cluster_kernels, softmax_kernels, support, topk_kernels, tree_kernels
from vocabench.impls.on_jax.pallas.support import KERNELS

pytestmark = pytest.mark.usefixtures("no_tf32")


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    """Disable kernels for CPUs, which take long to compile."""
    monkeypatch.setattr(cpp_kernels, "known", lambda dtype: False)


@pytest.fixture
def interpreted(monkeypatch):
    """Give layers the kernels, and run them with the interpreter. Fewer programs save it time."""
    monkeypatch.setattr(support, "known", lambda dtype, dim: True)
    monkeypatch.setattr(cluster_kernels, "_PROGRAMS", 2)
    functions = (
        (cluster_kernels, "in_cluster_nll"), (tree_kernels, "path_nll"), (softmax_kernels, "fused_nll"),
        (topk_kernels, "best_of_clusters"), (topk_kernels, "best_of_groups"), (tree_kernels, "log_leaves"),
    )  # fmt: skip
    for module, name in functions:
        monkeypatch.setattr(module, name, partial(getattr(module, name), interpret=INTERPRET))


SEVERAL_CODES = {"tree": "adaptive_eps", "eps": 0.4, "vectors": np.random.default_rng(7).normal(size=(97, 3))}


@pytest.mark.many_cells
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("sohsm", {"bias": True}),
        ("class_hsm", {}),
        ("huffman", {}),
        ("binary_tree", {"tree": "random"}),
        ("binary_tree", SEVERAL_CODES),
        ("fused_softmax", {}),
    ],
)
def test_layers_with_kernels_agree_with_their_definition(method, options, interpreted):
    spec = layers.spec(method, counts=zipf_counts(97), dim=24, seed=5, **options)
    form = layers.forms("jax", spec, "cuda")[0]
    ours = layers.from_spec("jax", dataclasses.replace(spec, form=form.id), "cpu" if INTERPRET else "cuda")
    assert KERNELS.label in ours.formulation()
    inputs = batch(spec.counts, tokens=60, dim=24, seed=5)
    loss, dhidden_ND, grads = ours.loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    oracle = layers.from_spec("numpy", dataclasses.replace(spec, dtype="float64"))
    expected_loss, expected_ND, expected = oracle.loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(dhidden_ND, expected_ND, atol=1e-5 * np.abs(expected_ND).max())
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, expected[name], atol=1e-5 * np.abs(expected[name]).max(), err_msg=name)
    for rows, k in ((1, 10), (60, 3), (60, 97)):
        values_NK, ids_NK = ours.topk(inputs.hidden_ND[:rows], k)
        expected_NK, expected_ids_NK = oracle.topk(inputs.hidden_ND[:rows], k)
        np.testing.assert_allclose(values_NK, expected_NK, rtol=1e-4)
        np.testing.assert_array_equal(ids_NK, expected_ids_NK)


@pytest.mark.lengthy
@pytest.mark.parametrize(("method", "options"), [("huffman", {}), ("binary_tree", SEVERAL_CODES)])
def test_gradients_of_a_table_of_nodes_are_those_of_all_nodes(method, options, interpreted):
    counts_V = zipf_counts(97) if options else zipf_counts(400)
    spec = layers.spec(method, counts=counts_V, dim=8, seed=5, **options)
    layer = native(dataclasses.replace(spec, form=KERNELS.id))
    inputs = batch(counts_V, tokens=20, dim=8, seed=5)
    structure, initial = layer.structure(), spec.initial_parameters()
    params = layer.from_canonical(structure, {name: jnp.asarray(value, jnp.float32) for name, value in initial.items()})
    hidden_ND, targets_N = jnp.asarray(inputs.hidden_ND, jnp.float32), jnp.asarray(inputs.targets_N)
    loss, whole = jax.jit(jax.value_and_grad(layer.loss))(params, structure, hidden_ND, targets_N)
    reach = layer.reach(structure, targets_N)
    table = sparse_rows.tables(params, reach.rows)
    loss_of_table, few = jax.jit(jax.value_and_grad(layer.loss_of_reach))(table, reach, hidden_ND)
    scattered = jnp.zeros_like(whole["node_weight"]).at[reach.rows["node_weight"]].add(few["node_weight"], mode="drop")
    np.testing.assert_allclose(loss_of_table, loss, rtol=1e-6)
    np.testing.assert_allclose(scattered, whole["node_weight"], atol=1e-6)


def gpu(capability, kib):
    return SimpleNamespace(compute_capability=capability, shared_memory_per_block_optin=kib * 2**10)


H100, RTX_4090, T4, MI300 = gpu("9.0", 227), gpu("8.9", 99), gpu("7.5", 64), gpu("gfx942", 0)


@pytest.mark.parametrize(
    ("device", "method", "dim", "dtype", "available"),
    [
        (H100, "sohsm", 2048, "bfloat16", True),
        (H100, "class_hsm", 2049, "bfloat16", False),
        (H100, "class_hsm", 1024, "tf32", True),
        (H100, "sohsm", 1032, "float32", False),
        (H100, "huffman", 512, "bfloat16", True),
        (H100, "binary_tree", 1024, "float32", True),
        (H100, "binary_tree", 64, "float64", False),
        (H100, "sohsm", 64, "float64", False),
        (H100, "full_softmax", 64, "float32", False),
        (RTX_4090, "sohsm", 1024, "bfloat16", True),
        (RTX_4090, "sohsm", 520, "float32", False),
        (T4, "sohsm", 64, "float32", False),
        (MI300, "sohsm", 64, "float32", False),
    ],
)
def test_kernels_are_preferred_on_a_gpu_with_enough_shared_memory(device, method, dim, dtype, available, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    spec = layers.spec(method, counts=zipf_counts(9), dim=dim, dtype=dtype)
    assert (KERNELS in layers.forms("jax", spec, "cuda")) == available
    assert (native(spec).form == KERNELS) == available
    assert KERNELS not in layers.forms("jax", spec)
    assert native(spec, SimpleNamespace(platform="cpu")).form != KERNELS


def test_a_machine_without_a_gpu_has_no_kernels():
    if jax.default_backend() == "gpu":
        pytest.skip("this machine has a GPU")
    assert KERNELS not in layers.forms("jax", layers.spec("sohsm", counts=zipf_counts(9), dim=8), "cuda")
