"""The Pallas kernels of JAX's layers: on a GPU, else by Pallas' interpreter; and as what Triton is given for a GPU."""

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

from impls.cpp import Paths  # noqa: E402
from impls.on_jax import (  # noqa: E402
    _best_kernels,
    _cluster_kernels,
    _cpp,
    _pallas,
    _rows,
    _softmax_kernels,
    _tree_kernels,
    adapter,
)
from impls.on_jax._pallas import KERNELS  # noqa: E402
from impls.structures import huffman  # noqa: E402
from tests.impls.some_trees import chain, random_tree  # noqa: E402

INTERPRET = jax.default_backend() != "gpu"
H200 = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", 132, "gpu"))


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    """Kernels for CPUs, which take their time to compile, are not asked for here."""
    monkeypatch.setattr(_cpp, "known", lambda dtype: False)


@pytest.fixture(autouse=True)
def no_tf32():
    """Which JAX takes on a GPU by itself."""
    with adapter.precision("float32"):
        yield


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
        return _cluster_kernels.in_cluster_nll(*trained, *fixed, interpret=INTERPRET)

    @jax.jit
    def differentiated(trained, dnll_N):
        nll_N, gradients = jax.vjp(nll, trained)
        return nll_N, *jax.tree.leaves(gradients(dnll_N))

    found = differentiated(trained, jnp.asarray(dnll_N, jnp.float32))
    for ours, wanted in zip(found, exact(trained, fixed, dnll_N), strict=True):
        assert np.abs(np.asarray(ours, np.float64) - wanted).max() <= tolerance * np.abs(wanted).max()
    assert not np.asarray(found[2], np.float64)[np.asarray(fixed[0]) < 0].any()
    np.testing.assert_array_equal(jax.jit(nll)(trained), found[0])


def exact_paths(trained, index_NL, sign_NL, dnll_N) -> list[Any]:
    """Losses and gradients in float64."""
    hidden_ND, node_MD = (np.asarray(a, np.float64) for a in trained)
    turns_NL = sign_NL * (node_MD[index_NL] * hidden_ND[:, None]).sum(axis=2)
    nll_N = (np.logaddexp(0, -turns_NL) * (sign_NL != 0)).sum(axis=1)
    dscores_NL = -sign_NL / (1 + np.exp(turns_NL)) * dnll_N[:, None]
    dnode_MD = np.zeros_like(node_MD)
    np.add.at(dnode_MD, index_NL, dscores_NL[:, :, None] * hidden_ND[:, None])
    return [nll_N, (dscores_NL[:, :, None] * node_MD[index_NL]).sum(axis=1), dnode_MD]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize(
    ("children", "tokens", "dim", "near"),
    [
        (huffman.build(zipf_counts(700)).children, 90, 24, 128),  # most nodes unreached
        (huffman.build(zipf_counts(700)).children, 40, 7, 1),  # more tokens below a node than in a tile
        (huffman.build(zipf_counts(300)).children, 1, 33, 5),
        (huffman.build(zipf_counts(40)).children, 50, 300, 39),  # all near the root; more columns than in a block
        (huffman.build(zipf_counts(2)).children, 3, 1, 1),
        (random_tree(150), 40, 260, 16),
        (chain(45), 40, 20, 8),  # paths of more than one block
    ],
)
def test_paths_of_a_tree(children, tokens, dim, near, dtype, tolerance, monkeypatch):
    monkeypatch.setattr(_tree_kernels, "_COMPARED", 32)  # so that tokens are compared in several parts
    rng, tree = np.random.default_rng(5), huffman.from_children(children)
    leaf_N = rng.zipf(1.3, tokens).clip(max=len(children) + 1) - 1
    index_NL, sign_NL, place_N = tree.index[leaf_N], tree.sign[leaf_N], huffman.places(children)[leaf_N]
    sign_NL[5::7] = 0  # as of words with fewer codes than others
    paths = Paths(*(jnp.asarray(a, jnp.int32) for a in (index_NL, sign_NL, place_N)))
    vectors = (rng.normal(size=(count, dim)) / dim**0.25 for count in (tokens, len(children)))
    trained, dnll_N = [jnp.asarray(a, dtype) for a in vectors], rng.normal(size=tokens)

    def nll(trained):
        hidden_ND, node_MD = trained
        return _tree_kernels.path_nll(hidden_ND, node_MD, paths, near, interpret=INTERPRET)

    @jax.jit
    def differentiated(trained, dnll_N):
        nll_N, gradients = jax.vjp(nll, trained)
        return nll_N, *jax.tree.leaves(gradients(dnll_N))

    found = differentiated(trained, jnp.asarray(dnll_N, jnp.float32))
    expected = exact_paths(trained, index_NL, sign_NL, dnll_N)
    for ours, wanted in zip(found, expected, strict=True):
        assert np.abs(np.asarray(ours, np.float64) - wanted).max() <= tolerance * np.abs(wanted).max()
    assert not np.asarray(found[2], np.float64)[~expected[2].any(axis=1)].any()
    np.testing.assert_allclose(jax.jit(nll)(trained), found[0], rtol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize(
    ("tokens", "vocab", "dim", "width"),
    [(30, 700, 24, 192), (7, 128, 16, 64), (1, 90, 33, 90), (20, 100, 8, 100), (5, 65, 9, 64)],
)
def test_a_softmax_by_blocks_of_words(tokens, vocab, dim, width, dtype, tolerance, monkeypatch):
    """With a few words after the last block, one, none; a block wider than a part that is looked at together."""
    monkeypatch.setattr(_softmax_kernels, "_COLUMNS", 64)
    monkeypatch.setattr(_softmax_kernels, "_WORDS", 128)
    rng = np.random.default_rng(vocab)
    drawn = rng.normal(size=(tokens, dim)) * 3, rng.normal(size=(vocab, dim)), rng.normal(size=vocab)
    trained, dnll_N = [jnp.asarray(array, dtype) for array in drawn], rng.normal(size=tokens)
    targets_N = rng.integers(0, vocab, tokens)
    targets_N[0] = vocab - 1

    def nll(trained):
        hidden_ND, weight_VD, bias_V = trained
        given = hidden_ND, weight_VD, bias_V, jnp.asarray(targets_N)
        return _softmax_kernels.fused_nll(*given, width, interpret=INTERPRET)

    @jax.jit
    def differentiated(trained, dnll_N):
        nll_N, gradients = jax.vjp(nll, trained)
        return nll_N, *jax.tree.leaves(gradients(dnll_N))

    found = differentiated(trained, jnp.asarray(dnll_N, jnp.float32))
    hidden_ND, weight_VD, bias_V = (np.asarray(array, np.float64) for array in trained)
    logits_NV = hidden_ND @ weight_VD.T + bias_V
    log_probs_NV = logits_NV - np.logaddexp.reduce(logits_NV, axis=1, keepdims=True)
    dlogits_NV = dnll_N[:, None] * (np.exp(log_probs_NV) - (targets_N[:, None] == np.arange(vocab)))
    wanted = [dlogits_NV @ weight_VD, dlogits_NV.T @ hidden_ND, dlogits_NV.sum(axis=0)]
    for ours, exact in zip(found, [-log_probs_NV[np.arange(tokens), targets_N], *wanted], strict=True):
        assert np.abs(np.asarray(ours, np.float64) - exact).max() <= tolerance * np.abs(exact).max()
    np.testing.assert_array_equal(jax.jit(nll)(trained), found[0])


@pytest.fixture
def interpreted(few_programs, monkeypatch):
    """Layers have the kernels, which the interpreter runs."""
    monkeypatch.setattr(_pallas, "known", lambda dtype, dim: True)
    own = (
        (_cluster_kernels, "in_cluster_nll"), (_tree_kernels, "path_nll"), (_softmax_kernels, "fused_nll"),
        (_best_kernels, "best_of_clusters"), (_best_kernels, "best_of_groups"), (_tree_kernels, "log_leaves"),
    )  # fmt: skip
    for module, name in own:
        monkeypatch.setattr(module, name, partial(getattr(module, name), interpret=INTERPRET))


SEVERAL_CODES = {"tree": "adaptive_eps", "eps": 0.4, "vectors": np.random.default_rng(7).normal(size=(97, 3))}


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
def test_layers_of_kernels_agree_with_their_definition(method, options, interpreted):
    spec = layers.spec(method, counts=zipf_counts(97), dim=24, seed=5, **options)
    form = layers.forms("jax", spec, "cuda")[0]
    ours = layers.from_spec("jax", dataclasses.replace(spec, form=form), "cpu" if INTERPRET else "cuda")
    assert KERNELS in ours.formulation()
    inputs = batch(spec.counts, tokens=60, dim=24, seed=5)
    loss, dhidden_ND, grads = ours.loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    oracle = layers.from_spec("numpy", dataclasses.replace(spec, dtype="float64"))
    wanted_loss, wanted_ND, wanted = oracle.loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    np.testing.assert_allclose(loss, wanted_loss, rtol=1e-5)
    np.testing.assert_allclose(dhidden_ND, wanted_ND, atol=1e-5 * np.abs(wanted_ND).max())
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, wanted[name], atol=1e-5 * np.abs(wanted[name]).max(), err_msg=name)
    for rows, k in ((1, 10), (60, 3), (60, 97)):
        values_NK, ids_NK = ours.topk(inputs.hidden_ND[:rows], k)
        wanted_NK, wanted_ids_NK = oracle.topk(inputs.hidden_ND[:rows], k)
        np.testing.assert_allclose(values_NK, wanted_NK, rtol=1e-4)
        np.testing.assert_array_equal(ids_NK, wanted_ids_NK)


@pytest.mark.parametrize(("method", "options"), [("huffman", {}), ("binary_tree", SEVERAL_CODES)])
def test_a_table_of_the_nodes_that_a_batch_reads_has_their_gradients(method, options, interpreted):
    counts_V = zipf_counts(97) if options else zipf_counts(400)
    spec = layers.spec(method, counts=counts_V, dim=8, seed=5, **options)
    layer, inputs = adapter.native(dataclasses.replace(spec, form=KERNELS)), batch(counts_V, tokens=20, dim=8, seed=5)
    structure, initial = layer.structure(), spec.initial_parameters()
    params = layer.from_canonical(structure, {name: jnp.asarray(a, jnp.float32) for name, a in initial.items()})
    hidden_ND, targets_N = jnp.asarray(inputs.hidden_ND, jnp.float32), jnp.asarray(inputs.targets_N)
    of_nodes = jax.jit(jax.value_and_grad(layer.loss))
    loss, whole = of_nodes(params, structure, hidden_ND, targets_N)
    reach = layer.reach(structure, targets_N)
    table = _rows.tables(params, reach.rows)
    loss_of_table, few = of_nodes(table, reach.structure, hidden_ND, reach.targets_N)
    scattered = jnp.zeros_like(whole["node_weight"]).at[reach.rows["node_weight"]].add(few["node_weight"], mode="drop")
    np.testing.assert_array_equal(loss_of_table, loss)
    np.testing.assert_allclose(scattered, whole["node_weight"], atol=1e-6)


TOKENS, CLUSTERS, NODES, DEPTH = 2560, 210, 43_999, 19


def lowered(nll, shapes, fixed, dtype):
    """Forward and backward of the loss of arrays of these shapes as they are for a GPU, which is not asked."""
    trained = [jax.ShapeDtypeStruct(shape, adapter.JAX_DTYPES[dtype]) for shape in shapes]
    fixed = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in fixed]

    def loss(trained, fixed):
        return nll(*trained, *fixed).sum()

    with use_abstract_mesh(H200):
        traced = jax.jit(jax.value_and_grad(loss)).trace(trained, fixed)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def lowered_clusters(dtype, width, dim):
    trained = (TOKENS, dim), (CLUSTERS, width, dim), (CLUSTERS, width)
    fixed = (CLUSTERS, width), (TOKENS,), (TOKENS,)
    return lowered(_cluster_kernels.in_cluster_nll, trained, fixed, dtype)


def lowered_tree(dtype, dim):
    def nll(hidden_ND, node_MD, *paths):
        return _tree_kernels.path_nll(hidden_ND, node_MD, Paths(*paths), near=256)

    fixed = (TOKENS, DEPTH), (TOKENS, DEPTH), (TOKENS,)
    return lowered(nll, ((TOKENS, dim), (NODES, dim)), fixed, dtype)


def lowered_softmax(dtype, dim):
    def nll(hidden_ND, weight_VD, bias_V, targets_N):
        return _softmax_kernels.fused_nll(hidden_ND, weight_VD, bias_V, targets_N, width=6528)

    return lowered(nll, ((TOKENS, dim), (NODES, dim), (NODES,)), [(TOKENS,)], dtype)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("k", [1, 10, 60])
def test_the_best_of_clusters(k, biased):
    """Of half of the words each has an equal; a cluster may hold fewer words than are asked for."""
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
    given = scores_NF, biases, jnp.asarray(log_cluster_NC, "float32"), jnp.asarray(word_CS)
    found = _best_kernels.best_of_clusters(*given, k, interpret=INTERPRET)
    values_NK, ids_NK = (np.asarray(array) for array in found)
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
def test_the_best_of_groups_with_ties(columns, k):
    """Of few kinds, so that most are ties; of groups that hold fewer than k, and fewer groups than k."""
    rng = np.random.default_rng(columns)
    scores_NV = rng.integers(-3, 4, (5, columns)).astype(np.float32)
    scores_NV[scores_NV == 2] = -np.inf
    scores_NV[0] = rng.normal(size=columns)
    word_X = np.append(rng.permutation(columns), [-1] * (-columns % 32))
    scores_NX = np.append(scores_NV[:, word_X[:columns]], np.full((5, -columns % 32), 9.0, np.float32), axis=1)
    given = jnp.asarray(scores_NX), jnp.asarray(word_X.reshape(-1, 32), jnp.int32), k
    values_NK, ids_NK = _best_kernels.best_of_groups(*given, interpret=INTERPRET)
    order_NV = np.argsort(-scores_NV, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids_NK, order_NV)
    np.testing.assert_array_equal(values_NK, np.take_along_axis(scores_NV, order_NV, axis=1))


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize(
    "children",
    [
        huffman.build(zipf_counts(300)).children,
        huffman.build(zipf_counts(2)).children,
        huffman.build(
            np.ones(2**9, np.int64)
        ).children,  # paths of leaves side by side have half of their turns in common
        chain(45),
    ],
)
def test_log_probabilities_of_all_leaves(children, rows):
    tree = huffman.from_children(children)
    leaf_at = np.argsort(huffman.places(children))
    scores_MN = np.random.default_rng(2).normal(size=(len(children), rows)).astype(np.float32)
    paths = [jnp.asarray(array, jnp.int32) for array in (tree.index, tree.sign, tree.code_length, leaf_at)]
    log_leaf_NX = _tree_kernels.log_leaves(jnp.asarray(scores_MN), *paths, width=64, interpret=INTERPRET)
    assert log_leaf_NX.shape == (rows, -(-len(leaf_at) // 64) * 64)
    turns_FLN = tree.sign[:, :, None] * scores_MN[tree.index].astype(np.float64)
    log_FN = (-np.logaddexp(0, -turns_FLN) * (tree.sign != 0)[:, :, None]).sum(axis=1)
    np.testing.assert_allclose(log_leaf_NX[:, : len(leaf_at)], log_FN.T[:, leaf_at], rtol=1e-4)


def test_a_gpu_is_given_kernels_that_find_leaves():
    def found(scores_MN, index_FL, sign_FL, length_F, leaf_F):
        log_leaf_NX = _tree_kernels.log_leaves(scores_MN, index_FL, sign_FL, length_F, leaf_F, 1024)
        return _best_kernels.best_of_groups(log_leaf_NX, jnp.zeros((43, 1024), jnp.int32), 10)

    leaves, whole = NODES + 1, jnp.int32
    kinds = (
        (jnp.float32, NODES, 128), (whole, leaves, DEPTH), (whole, leaves, DEPTH), (whole, leaves), (whole, leaves),
    )  # fmt: skip
    with use_abstract_mesh(H200):
        traced = jax.jit(found).trace(*(jax.ShapeDtypeStruct(shape, kind) for kind, *shape in kinds))
        program = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("__gpu$xla.gpu.triton") == 5


def test_a_gpu_is_given_kernels_that_find_the_best():
    def found(scores_NF, bias_CS, log_cluster_NC, word_CS):
        return _best_kernels.best_of_clusters(scores_NF, bias_CS, log_cluster_NC, word_CS, 10)

    kinds = (jnp.float32, 64, 210 * 316), (jnp.bfloat16, 210, 316), (jnp.float32, 64, 210), (jnp.int32, 210, 316)
    with use_abstract_mesh(H200):
        traced = jax.jit(found).trace(*(jax.ShapeDtypeStruct(shape, kind) for kind, *shape in kinds))
        program = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("__gpu$xla.gpu.triton") == 4


def test_logits_are_not_kept_from_the_forward_pass():
    tokens, vocab, dim, width = 64, 4097, 32, 512

    def nll(hidden_ND, weight_VD, bias_V):
        targets_N = jnp.zeros(tokens, jnp.int32)
        return _softmax_kernels.fused_nll(hidden_ND, weight_VD, bias_V, targets_N, width, interpret=INTERPRET).sum()

    given = jnp.ones((tokens, dim)), jnp.ones((vocab, dim)), jnp.ones(vocab)
    planned = jax.jit(jax.grad(nll, argnums=(0, 1, 2))).lower(*given).compile().memory_analysis()
    assert planned.temp_size_in_bytes < tokens * vocab * 4 / 2


@pytest.fixture
def kernels_shown(monkeypatch):
    monkeypatch.setattr(_cluster_kernels.pl, "pallas_call", partial(_cluster_kernels.pl.pallas_call, debug=True))


@pytest.mark.parametrize(
    ("dtype", "width", "dim", "tf32"), [("bfloat16", 320, 512, 0), ("tf32", 77, 1000, 4), ("float32", 320, 512, 0)]
)
def test_a_gpu_is_given_kernels_of_the_precision_that_is_asked_for(dtype, width, dim, tf32, kernels_shown, capsys):
    """They have loops and products that Triton knows."""
    with adapter.precision(dtype):
        program = lowered_clusters(dtype, width, dim)
    kernels = capsys.readouterr().out
    assert program.count("__gpu$xla.gpu.triton") == 3
    assert kernels.count("tt.dot") == 4
    assert kernels.count("inputPrecision = tf32") == tf32
    assert kernels.count("scf.for") == 6
    assert "scf.while" not in kernels


@pytest.mark.parametrize(("dtype", "dim", "tf32"), [("bfloat16", 512, 0), ("tf32", 513, 1), ("float32", 512, 0)])
def test_a_gpu_is_given_kernels_of_trees(dtype, dim, tf32, kernels_shown, capsys):
    with adapter.precision(dtype):
        program = lowered_tree(dtype, dim)
    kernels = capsys.readouterr().out
    assert program.count("__gpu$xla.gpu.triton") == 4
    assert kernels.count("tt.dot") == 1
    assert kernels.count("inputPrecision = tf32") == tf32
    assert kernels.count("scf.for") == 4
    assert kernels.count("scf.while") == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_gpu_is_given_kernels_of_a_softmax(dtype):
    assert lowered_softmax(dtype, 512).count("__gpu$xla.gpu.triton") == 4


def test_a_program_may_ask_jax_for_64_bits():
    with jax.enable_x64(True):
        assert lowered_clusters("float32", 40, 24).count("__gpu$xla.gpu.triton") == 3
        assert lowered_tree("float32", 24).count("__gpu$xla.gpu.triton") == 4
        assert lowered_softmax("float32", 24).count("__gpu$xla.gpu.triton") == 4  # of a loop and of the last block


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
def test_there_are_kernels_on_a_gpu_with_room_for_them(device, method, dim, dtype, there, monkeypatch):
    """And are what a layer takes by itself."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    spec = layers.spec(method, counts=zipf_counts(9), dim=dim, dtype=dtype)
    assert (KERNELS in layers.forms("jax", spec, "cuda")) == there
    assert (adapter.native(spec).form == KERNELS) == there
    assert KERNELS not in layers.forms("jax", spec)
    assert adapter.native(spec, SimpleNamespace(platform="cpu")).form != KERNELS


def test_a_machine_without_a_gpu_has_none_of_them():
    if jax.default_backend() == "gpu":
        pytest.skip("here is one")
    assert KERNELS not in layers.forms("jax", layers.spec("sohsm", counts=zipf_counts(9), dim=8), "cuda")
