"""The C++ kernels of binary trees as called by PyTorch, for any trees and sizes, and the layers that use them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls import cpp
from vocabench.impls.cpp import CPP, Paths
from vocabench.impls.on_numpy.oracle import best, log_sigmoid
from vocabench.impls.structures import huffman, trees

torch = pytest.importorskip("torch")

from vocabench.impls.on_torch.ops import cpp_kernels
from vocabench.impls.on_torch.trees import path_losses

pytestmark = pytest.mark.many_cells

if cpp.compiler() is None:
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
SEVERAL_CODES = {"tree": "adaptive_eps", "eps": 0.4, "vectors": np.random.default_rng(7).standard_normal((300, 3))}


def chain(vocab):
    """Return a tree with paths of all lengths up to V - 1."""
    first = np.arange(vocab - 1) + vocab - 1
    first[0] = 0
    return np.stack([np.arange(1, vocab), first], axis=1)


TREES = {
    "huffman": lambda vocab: huffman.build(zipf_counts(vocab)).children,
    "random": lambda vocab: trees.random_tree(vocab, np.random.default_rng(vocab)),
    "chain": chain,
}


def vectors(rows, dim, seed, scale=1.0):
    values = np.random.default_rng(seed).standard_normal((rows, dim)) * scale
    return torch.from_numpy(values.astype(np.float32))


def leaf_log_probs(hidden_ND, node_weight, children):
    """Return (N, leaves) log-probabilities in float64."""
    scores_NM = hidden_ND.double().numpy() @ node_weight.double().numpy().T
    leaves = len(children) + 1
    prefix = np.zeros((len(hidden_ND), 2 * leaves - 1))
    for nodes in huffman.levels(children):
        for side, sign in ((0, 1), (1, -1)):
            prefix[:, children[nodes, side]] = prefix[:, leaves + nodes] + log_sigmoid(sign * scores_NM[:, nodes])
    return prefix[:, :leaves]


def check_search(children, dim, rows, k, scale):
    hidden_ND, node_weight = vectors(rows, dim, 1), vectors(len(children), dim, 2, scale)
    values_NK, ids_NK, share_N = cpp_kernels.likeliest_leaves(hidden_ND, node_weight, torch.from_numpy(children), k)
    expected_NF = leaf_log_probs(hidden_ND, node_weight, children)
    np.testing.assert_allclose(values_NK, best(expected_NF, k)[0], rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(values_NK, np.take_along_axis(expected_NF, ids_NK.numpy(), axis=1), rtol=1e-5, atol=2e-5)
    assert all(len(set(row)) == k for row in ids_NK.tolist())
    assert ((share_N > 0) & (share_N <= 1)).all()
    return share_N


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(TREES)), st.integers(2, 400), st.integers(1, 70), st.integers(1, 20), st.integers(1, 30),
    st.sampled_from([1e-3, 0.3, 3.0]),
)  # fmt: skip
def test_the_likeliest_leaves_are_exact(tree, vocab, dim, rows, k, scale):
    check_search(TREES[tree](vocab), dim, rows, min(k, vocab), scale)


@pytest.mark.lengthy
@pytest.mark.parametrize("rows", [1, 40, 100])
@pytest.mark.parametrize("dim", [16, 37])
def test_the_likeliest_leaves_are_exact_for_either_register_width(compiled_otherwise, dim, rows):
    share_N = check_search(TREES["random"](3000), dim, rows, 5, 1e-3)
    assert (share_N == 1).all(), "leaves are almost equally likely, so that all nodes are visited"
    # With vectors this large, a few leaves have almost all of the probability.
    assert (check_search(TREES["huffman"](3000), dim, rows, 5, 20.0) < 0.2).any()


@pytest.mark.parametrize("rows", [1, 50])
def test_equally_likely_leaves_are_sorted_by_id(rows):
    """Ties are sorted whether few or all nodes are visited."""
    children = torch.from_numpy(TREES["random"](4096))
    _, ids_NK, share_N = cpp_kernels.likeliest_leaves(torch.zeros(rows, 8), torch.zeros(4095, 8), children, 9)
    assert (share_N == 1).all()
    assert ids_NK.tolist() == [list(range(9))] * rows
    # The two leaves below a node are tied, and few nodes are visited.
    hidden_ND, weights = torch.ones(rows, 8), vectors(4095, 8, 5, 4.0)
    weights[(children < 4096).all(dim=1)] = 0
    values_NK, ids_NK, share_N = cpp_kernels.likeliest_leaves(hidden_ND, weights, children, 9)
    assert (share_N < 0.2).all()
    for values, ids in zip((-values_NK).tolist(), ids_NK.tolist(), strict=True):
        assert sorted(zip(values, ids, strict=True)) == list(zip(values, ids, strict=True))
    assert len(set(values_NK[0].tolist())) < 9, "there are ties"


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(TREES)), st.integers(2, 200), st.integers(1, 40), st.integers(1, 12), st.integers(1, 9))
def test_the_leaves_of_a_beam_are_those_of_the_oracle(tree, vocab, dim, width, rows):
    children, width = TREES[tree](vocab), min(width, vocab)
    spec = layers.spec(
        "binary_tree", counts=zipf_counts(vocab), dim=dim, tree="given", children=children, dtype="float64"
    )
    oracle = layers.from_spec("numpy", spec)
    params = {n: np.zeros_like(v) if n == "node_bias" else v * 9 for n, v in spec.initial_parameters().items()}
    oracle.load(params)
    hidden_ND = vectors(rows, dim, 3)
    weight = torch.from_numpy(params["node_weight"].astype(np.float32))
    values_NK, ids_NK, _ = cpp_kernels.leaves_of_beam(hidden_ND, weight, torch.from_numpy(children), width, width)
    expected_NK, _ = oracle.beam(hidden_ND.numpy(), width, width)
    np.testing.assert_allclose(values_NK, expected_NK, rtol=1e-5, atol=2e-5)
    log_probs_NF = leaf_log_probs(hidden_ND, weight, children)
    np.testing.assert_allclose(
        values_NK, np.take_along_axis(log_probs_NF, ids_NK.numpy(), axis=1), rtol=1e-5, atol=2e-5
    )


def paths_of(children, leaf_N):
    tree = huffman.from_children(children)
    arrays = tree.index[leaf_N], tree.sign[leaf_N], huffman.places(children)[leaf_N]
    return Paths(*(torch.from_numpy(array.astype(np.int32)) for array in arrays))


def check_paths(tree, vocab, dim, tokens, seed, empty=False):
    """Compare losses and gradients with those in float64, for an arbitrary upstream gradient."""
    children, rng = TREES[tree](vocab), np.random.default_rng(seed)
    hidden_ND, node_weight = vectors(tokens, dim, seed), vectors(vocab - 1, dim, seed + 1, 0.3)
    paths = paths_of(children, rng.integers(vocab, size=tokens))
    if empty:
        paths.sign_NL[::3] = 0
    upstream_N = torch.from_numpy(rng.standard_normal(tokens))
    exact = [array.double().requires_grad_() for array in (hidden_ND, node_weight)]
    turns_NL = paths.sign_NL * torch.einsum("nd,nld->nl", exact[0], exact[1][paths.index_NL])
    nll_N = -(torch.nn.functional.logsigmoid(turns_NL) * (paths.sign_NL != 0)).sum(dim=1)
    (nll_N * upstream_N).sum().backward()
    for row_sparse in (False, True):
        hidden, weight = (array.clone().requires_grad_() for array in (hidden_ND, node_weight))
        losses_N = path_losses.path_nll(hidden, weight, paths, row_sparse)
        (losses_N * upstream_N).sum().backward()
        torch.testing.assert_close(losses_N.detach().double(), nll_N.detach(), rtol=1e-5, atol=1e-5)
        assert weight.grad.is_sparse == row_sparse
        for array, expected in zip((hidden, weight), exact, strict=True):
            torch.testing.assert_close(array.grad.to_dense().double(), expected.grad, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(TREES)), st.integers(2, 150), st.integers(1, 150), st.integers(1, 80), st.integers(0, 9),
    st.booleans(),
)  # fmt: skip
def test_losses_and_gradients_of_paths_are_exact(tree, vocab, dim, tokens, seed, empty):
    check_paths(tree, vocab, dim, tokens, seed, empty)


@pytest.mark.lengthy
@pytest.mark.parametrize("dim", [16, 64, 200, 513])
def test_paths_are_exact_for_either_register_width(compiled_otherwise, dim):
    check_paths("huffman", 500, dim, 300, 5)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dim", [32, 19])
@pytest.mark.parametrize(("method", "options"), [("huffman", {}), ("binary_tree", {}), ("binary_tree", SEVERAL_CODES)])
def test_layers_agree_with_their_definition(framework, method, options, dim):
    spec = layers.spec(method, counts=zipf_counts(300), dim=dim, seed=2, **options)
    assert layers.forms(framework, spec)[0] == CPP
    layer = layers.from_spec(framework, dataclasses.replace(spec, form=CPP.id))
    assert layer.formulation() == CPP.label
    checks = agreement.check_layer(layer, batch(spec.counts, tokens=160, dim=dim, seed=2), k=12)
    assert [str(check) for check in checks if not check.agrees] == []
    assert checks


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", ["huffman", "binary_tree"])
def test_other_precisions_and_devices_have_other_forms(framework, method):
    for dtype in ("float64", "bfloat16"):
        spec = layers.spec(method, counts=zipf_counts(50), dim=8, dtype=dtype)
        assert CPP not in layers.forms(framework, spec)
    assert CPP not in layers.forms(framework, layers.spec(method, counts=zipf_counts(50), dim=8), "cuda")


def test_a_tree_layer_cast_to_double_uses_another_form():
    spec = layers.spec("huffman", counts=zipf_counts(60), dim=16)
    layer = layers.from_spec("torch", spec).native.double()
    hidden_ND, targets_N = vectors(5, 16, 0).double().requires_grad_(), torch.arange(5)
    assert layer.formulation() != CPP.label
    layer(hidden_ND, targets_N).backward()
    assert layer.node_weight.grad.dtype == torch.float64
    torch.testing.assert_close(layer.topk(hidden_ND, 3)[0], layer.log_probs(hidden_ND).topk(3)[0])
