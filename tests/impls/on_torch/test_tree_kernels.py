"""The Triton kernels of binary trees, compared with PyTorch's operations in float64.

They run on a CUDA device, or else in Triton's interpreter.
"""

import dataclasses
import sys

import numpy as np
import pytest

from tests.impls.some_trees import ALL_LEAVES_OF, chain, log_leaves, random_tree
from vocabench.harness import layers
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.structures import huffman

torch = pytest.importorskip("torch", reason="needs PyTorch")

# Triton's interpreter converts arrays to scalars in a way that NumPy allowed before 2.4.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter does not support bfloat16, whose relative rounding is 2^-9.
DTYPES = [(torch.float32, 1e-5), *([(torch.bfloat16, 2e-2)] if DEVICE == "cuda" else [])]
VECTORS = np.random.default_rng(7).standard_normal((200, 3))


@pytest.fixture(scope="module")
def kernels():
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE == "cpu":
            # Triton reads the variable on import and when a kernel is defined.
            if "triton" in sys.modules and not interpreted():
                pytest.skip("Triton was imported without its interpreter: needs a separate process")
            if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
                pytest.skip(f"Triton's interpreter needs NumPy before 2.4, not {np.__version__}")
            patch.setenv("TRITON_INTERPRET", "1")
        pytest.importorskip("triton", reason="needs Triton")
        from vocabench.impls.on_torch.triton import tree_kernels

        yield tree_kernels


def interpreted():
    return type(sys.modules["triton.language"].sum).__name__ == "InterpretedFunction"


@pytest.fixture
def offered(monkeypatch, kernels):
    """Make the form available on any device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def assert_near(actual, expected, relative=1e-5):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=relative * max(abs(expected).max(), 1e-30))


def differentiated(nll, inputs, weight_N):
    hidden_ND, node_MD = (value.clone().requires_grad_() for value in inputs)
    nll_N = nll(hidden_ND, node_MD)
    (nll_N * weight_N.to(nll_N)).sum().backward()
    return [t.detach().cpu().double().numpy() for t in (nll_N, hidden_ND.grad, node_MD.grad)]


@pytest.mark.parametrize(("dtype", "relative"), DTYPES, ids=str)
@pytest.mark.parametrize(
    ("children", "tokens", "dim", "near"),
    [
        (huffman.build(zipf_counts(700)).children, 150, 24, 128),  # many tokens below a node; most nodes not reached
        (huffman.build(zipf_counts(700)).children, 40, 7, 1),  # almost all nodes by the kernel; more than one tile
        (huffman.build(zipf_counts(300)).children, 1, 33, 5),
        (huffman.build(zipf_counts(40)).children, 90, 300, 39),  # all nodes near the root; two blocks of columns
        (huffman.build(zipf_counts(2)).children, 3, 1, 1),
        (huffman.build(zipf_counts(12)).children, 120, 5, 1),  # all words, with short paths next to long ones
        (random_tree(150), 64, 260, 16),
        (chain(45), 70, 20, 8),  # paths of more than one block
    ],
)
def test_kernels_agree_with_operations(kernels, children, tokens, dim, near, dtype, relative):
    from vocabench.impls.on_torch.trees import tree_layer

    rng = np.random.default_rng(5)
    tree = huffman.from_children(children)
    leaf_N = rng.zipf(1.3, tokens).clip(max=len(children) + 1) - 1
    hidden_ND, node_MD = rng.standard_normal((tokens, dim)), rng.standard_normal((len(children), dim))
    weight_N = torch.from_numpy(rng.standard_normal(tokens)).to(DEVICE)
    index, sign, length, place, leaf = (
        torch.from_numpy(array).to(DEVICE)
        for array in (
            tree.index, tree.sign, tree.code_length.astype(np.int32), huffman.places(children).astype(np.int32), leaf_N
        )
    )  # fmt: skip

    def by_operations(hidden, node):
        return tree_layer._PathNll.apply(
            hidden, node, index[leaf], sign[leaf], tree_layer._shared(len(node)), tree_layer._FEW_PAIRS, False
        )

    def by_kernels(hidden, node):
        return kernels.path_nll(hidden, node, leaf, index, sign, length, place, near)

    inputs = [torch.from_numpy(array / dim**0.25).to(DEVICE, dtype) for array in (hidden_ND, node_MD)]
    expected = differentiated(by_operations, [value.double() for value in inputs], weight_N)
    first, second = (differentiated(by_kernels, inputs, weight_N) for _ in range(2))
    for actual, exact, repeated in zip(first, expected, second, strict=True):
        assert_near(actual, exact, relative)
        assert actual.tolist() == repeated.tolist()
    assert not first[2][~expected[2].any(axis=1)].any()
    with torch.no_grad():
        assert_near(by_kernels(*inputs).double().cpu().numpy(), first[0])


def test_large_scores_neither_overflow_nor_vanish(kernels):
    tree = huffman.build(np.array([1, 1, 2, 4]))
    paths = tree.index, tree.sign, tree.code_length.astype(np.int32), huffman.places(tree.children).astype(np.int32)
    on_device = [torch.from_numpy(array).to(DEVICE) for array in paths]
    hidden_ND = torch.full((4, 2), 200.0, device=DEVICE, requires_grad=True)
    node_MD = torch.full((3, 2), 1.0, device=DEVICE, requires_grad=True)
    nll_N = kernels.path_nll(hidden_ND, node_MD, torch.arange(4, device=DEVICE), *on_device, 3)
    nll_N.sum().backward()
    right_N = (tree.sign < 0).sum(axis=1)
    assert nll_N.tolist() == (400.0 * right_N).tolist()
    assert hidden_ND.grad is not None
    assert hidden_ND.grad.tolist() == [[n, n] for n in right_N.tolist()]


@pytest.mark.parametrize("few", [0, 2**13])
@pytest.mark.parametrize("tokens", [1, 64, 1100])
def test_tokens_are_sorted_by_leaf(kernels, tokens, few, monkeypatch):
    monkeypatch.setattr(kernels, "_FEW_TOKENS", few)
    place_N = np.random.default_rng(tokens).integers(0, 300, tokens, dtype=np.int32)
    order_N = kernels._order(torch.from_numpy(place_N).to(DEVICE))
    assert order_N.tolist() == np.argsort(place_N, kind="stable").tolist()


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("children", ALL_LEAVES_OF)
def test_log_probabilities_of_all_leaves_are_exact(kernels, children, rows):
    tree, leaf_at = huffman.from_children(children), np.argsort(huffman.places(children))
    scores_MN = np.random.default_rng(2).standard_normal((len(children), rows)).astype(np.float32)
    paths = tree.index, tree.sign, tree.code_length.astype(np.int32), leaf_at.astype(np.int32)
    inputs = (torch.from_numpy(array).to(DEVICE) for array in (scores_MN, *paths))
    assert_near(kernels.log_leaves(*inputs).cpu().numpy(), log_leaves(tree, scores_MN)[:, leaf_at])


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("huffman", {}),
        ("binary_tree", {}),  # with biases
        ("binary_tree", {"tree": "adaptive_eps", "eps": 0.4, "vectors": VECTORS}),  # a word has several codes
    ],
)
def test_layers_with_kernels_agree_with_the_oracle(offered, method, options):
    from vocabench.impls.on_torch.contract_layer import TorchLayer
    from vocabench.impls.on_torch.triton.availability import KERNELS

    spec = layers.spec(method, counts=zipf_counts(200), dim=12, **options)
    forms = layers.forms("torch", spec, "cuda")
    # `layers.from_spec` would refuse the kernels on a CPU.
    layer = TorchLayer(dataclasses.replace(spec, form=forms[0].id), torch.device(DEVICE))
    oracle = layers.create("numpy", method, counts=zipf_counts(200), dim=12, **options)
    oracle.load({name: value.astype(np.float64) for name, value in layer.parameters().items()})
    rng = np.random.default_rng(0)
    hidden_ND, targets_N = rng.standard_normal((20, 12)), rng.zipf(1.3, 20).clip(max=200) - 1
    loss, dhidden_ND, grads = layer.loss_and_grads(hidden_ND.astype(np.float32), targets_N)
    expected, expected_dhidden_ND, expected_grads = oracle.loss_and_grads(
        hidden_ND.astype(np.float32).astype(np.float64), targets_N
    )
    assert forms[0] == KERNELS
    assert KERNELS.label in layer.formulation()
    assert_near(np.array(loss), np.array(expected))
    assert_near(dhidden_ND, expected_dhidden_ND)
    for name, grad in grads.items():
        assert_near(grad, expected_grads[name])


def test_sparse_gradients_use_operations_instead_of_kernels(offered):
    from vocabench.impls.on_torch.methods.huffman import HuffmanSoftmax

    spec = layers.spec("huffman", counts=zipf_counts(300), dim=6, dtype="float32")
    forms = layers.forms("torch", spec, "cuda")
    layer = HuffmanSoftmax(dataclasses.replace(spec, form=forms[0].id)).to(DEVICE)
    torch.nn.init.normal_(layer.node_weight, generator=torch.Generator(DEVICE).manual_seed(0))
    inputs = torch.ones(4, 6, device=DEVICE), torch.tensor([0, 7, 7, 290], device=DEVICE)
    gradients = []
    for sparse in (False, True):
        layer.row_sparse = sparse
        layer.node_weight.grad = None
        layer(*inputs).backward()
        assert layer.node_weight.grad is not None
        assert layer.node_weight.grad.is_sparse == sparse
        gradients.append(layer.node_weight.grad.cpu().to_dense().numpy())
    assert_near(gradients[0], gradients[1])
    assert forms[1].label in layer.formulation()
