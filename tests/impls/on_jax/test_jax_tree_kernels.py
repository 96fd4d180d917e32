"""Tests of the Pallas kernels of trees: paths in training, all leaves in decoding."""

from typing import Any

import numpy as np
import pytest

from vocabench.harness.measure.workload import zipf_counts

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.pallas.triton")

import jax.numpy as jnp

from tests.impls.on_jax import pallas
from tests.impls.some_trees import ALL_LEAVES_OF, chain, log_leaves, random_tree
from vocabench.impls.cpp import Paths
from vocabench.impls.on_jax.device import precision
from vocabench.impls.on_jax.pallas import tree_kernels
from vocabench.impls.structures import huffman

pytestmark = pytest.mark.usefixtures("no_tf32")

TOKENS, NODES, DEPTH = 2560, 43_999, 19


def exact_paths(trained, index_NL, sign_NL, dnll_N) -> list[Any]:
    """Return losses and gradients in float64."""
    hidden_ND, node_MD = (np.asarray(array, np.float64) for array in trained)
    turns_NL = sign_NL * (node_MD[index_NL] * hidden_ND[:, None]).sum(axis=2)
    nll_N = (np.logaddexp(0, -turns_NL) * (sign_NL != 0)).sum(axis=1)
    dscores_NL = -sign_NL / (1 + np.exp(turns_NL)) * dnll_N[:, None]
    dnode_MD = np.zeros_like(node_MD)
    np.add.at(dnode_MD, index_NL, dscores_NL[:, :, None] * hidden_ND[:, None])
    return [nll_N, (dscores_NL[:, :, None] * node_MD[index_NL]).sum(axis=1), dnode_MD]


@pytest.mark.many_cells
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize(
    ("children", "tokens", "dim", "near"),
    [
        (huffman.build(zipf_counts(700)).children, 90, 24, 128),  # most nodes are on no path
        (huffman.build(zipf_counts(700)).children, 40, 7, 1),  # more tokens below a node than in a tile
        (huffman.build(zipf_counts(300)).children, 1, 33, 5),
        (huffman.build(zipf_counts(40)).children, 50, 300, 39),  # all near the root; columns of two blocks
        (huffman.build(zipf_counts(2)).children, 3, 1, 1),
        (random_tree(150), 40, 260, 16),
        (chain(45), 40, 20, 8),  # paths of more than one block
    ],
)
def test_paths_agree_with_float64(children, tokens, dim, near, dtype, tolerance, monkeypatch):
    monkeypatch.setattr(tree_kernels, "_COMPARED", 32)  # compare tokens in several parts
    rng, tree = np.random.default_rng(5), huffman.from_children(children)
    leaf_N = rng.zipf(1.3, tokens).clip(max=len(children) + 1) - 1
    index_NL, sign_NL, place_N = tree.index[leaf_N], tree.sign[leaf_N], huffman.places(children)[leaf_N]
    sign_NL[5::7] = 0  # like words with fewer codes than others
    paths = Paths(*(jnp.asarray(array, jnp.int32) for array in (index_NL, sign_NL, place_N)))
    vectors = (rng.normal(size=(count, dim)) / dim**0.25 for count in (tokens, len(children)))
    trained, dnll_N = [jnp.asarray(array, dtype) for array in vectors], rng.normal(size=tokens)

    def nll(trained):
        hidden_ND, node_MD = trained
        return tree_kernels.path_nll(hidden_ND, node_MD, paths, near, interpret=pallas.INTERPRET)

    nll_N, *gradients = pallas.differentiated(nll, trained, dnll_N)
    expected = exact_paths(trained, index_NL, sign_NL, dnll_N)
    pallas.close([nll_N, *gradients], expected, tolerance)
    assert not gradients[1][~expected[2].any(axis=1)].any()
    np.testing.assert_allclose(jax.jit(nll)(trained), nll_N, rtol=1e-6)


@pytest.mark.many_cells
@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("children", ALL_LEAVES_OF)
def test_log_probabilities_of_all_leaves_are_exact(children, rows):
    tree, leaf_at = huffman.from_children(children), np.argsort(huffman.places(children))
    scores_MN = np.random.default_rng(2).normal(size=(len(children), rows)).astype(np.float32)
    paths = [jnp.asarray(array, jnp.int32) for array in (tree.index, tree.sign, tree.code_length, leaf_at)]
    log_leaf_NX = tree_kernels.log_leaves(jnp.asarray(scores_MN), *paths, width=64, interpret=pallas.INTERPRET)
    assert log_leaf_NX.shape == (rows, -(-len(leaf_at) // 64) * 64)
    np.testing.assert_allclose(log_leaf_NX[:, : len(leaf_at)], log_leaves(tree, scores_MN)[:, leaf_at], rtol=1e-4)


def lowered(dtype, dim):
    def nll(hidden_ND, node_MD, *paths):
        return tree_kernels.path_nll(hidden_ND, node_MD, Paths(*paths), near=256)

    fixed = (TOKENS, DEPTH), (TOKENS, DEPTH), (TOKENS,)
    return pallas.loss_for_a_gpu(nll, ((TOKENS, dim), (NODES, dim)), fixed, dtype)


@pytest.mark.usefixtures("kernels_shown")
@pytest.mark.parametrize(("dtype", "dim", "tf32"), [("bfloat16", 512, 0), ("tf32", 513, 1), ("float32", 512, 0)])
def test_program_for_a_gpu_consists_of_kernels(dtype, dim, tf32, capsys):
    with precision(dtype):
        program = lowered(dtype, dim)
    kernels = capsys.readouterr().out
    assert program.count(pallas.TRITON) == 4
    assert kernels.count("tt.dot") == 1
    assert kernels.count("inputPrecision = tf32") == tf32
    assert kernels.count("scf.for") == 4
    assert kernels.count("scf.while") == 1


def test_all_leaves_are_one_kernel_on_a_gpu():
    def leaves(scores_MN, index_FL, sign_FL, length_F, leaf_F):
        return tree_kernels.log_leaves(scores_MN, index_FL, sign_FL, length_F, leaf_F, 1024)

    count = NODES + 1
    paths = (count, DEPTH), (count, DEPTH), (count,), (count,)
    inputs = (jnp.float32, NODES, 128), *((jnp.int32, *shape) for shape in paths)
    assert pallas.for_a_gpu(leaves, *inputs).count(pallas.TRITON) == 1


def test_kernels_do_not_depend_on_64_bit_types():
    with jax.enable_x64(True):
        assert lowered("float32", 24).count(pallas.TRITON) == 4
