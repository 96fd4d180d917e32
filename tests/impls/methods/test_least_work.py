"""The formulas of least work against PyTorch's own count, counts made token by token, and the oracle's gradients."""

import dataclasses

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.cpp import CPP
from vocabench.impls.errors import BadInput
from vocabench.impls.spec import LeastWork
from vocabench.impls.structures.huffman import from_children
from vocabench.impls.structures.trees import random_tree

VOCAB, DIM, TOKENS = 300, 16, 60
CASES = [
    (method, dict(options)) for method in registry.methods() for options in ({}, *registry.definition(method).variants)
]
TREE = {"tree": "adaptive_eps", "eps": 0.4, "vectors": np.random.default_rng(7).standard_normal((VOCAB, 3))}


def make(method, framework="numpy", tokens=TOKENS, **options):
    counts_V = np.random.default_rng(3).permutation(zipf_counts(VOCAB))
    layer = layers.create(framework, method, counts=counts_V, dim=DIM, seed=2, **options)
    if framework == "torch":  # it counts its own products, not those of our kernels
        own = next((form.id for form in layers.forms(framework, layer.spec) if form != CPP), "")
        layer = layers.from_spec(framework, dataclasses.replace(layer.spec, form=own))
    return layer, batch(counts_V, tokens=tokens, dim=DIM, seed=4)


def least(layer, targets, **extra) -> LeastWork:
    """Return the least work of a layer whose method has a formula."""
    found = layer.least_work(targets, **extra)
    assert found is not None
    return found


@pytest.mark.parametrize(("method", "options"), [*CASES, ("binary_tree", TREE)])
def test_bytes_are_of_what_has_a_gradient(method, options):
    """Rows whose gradient is not zero, the hidden vectors, and both over again for what is written. A filter that is
    off at every word has none."""
    layer, inputs = make(method, **options)
    _, dhidden_ND, grads = layer.loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    reached = [grad[grad.reshape(len(grad), -1).any(axis=1)].size for grad in grads.values()]
    found = least(layer, inputs.targets_N)
    off = 0.02 if method == "cnn_softmax" else 0.0
    assert found.bytes == pytest.approx(8 * 2 * (sum(reached) + dhidden_ND.size), rel=off, abs=0)


# How much PyTorch's layers compute on top of the formula: none; the bias' gradient as a product; every band's
# projection of every token; every filter on every window of four characters; the nodes most visited for all tokens.
MOST = {
    "full_softmax": 1.0,
    "inplace_softmax": 1.03,
    "fused_softmax": 1.0,
    "adaptive_softmax": 1.0,
    "adaptive_log_softmax": 1.0,
    "d_softmax": 1.0,
    "d_softmax_star": 1.5,
    "cnn_softmax": 7.0,
    "huffman": 40.0,
    "binary_tree": 40.0,
}


@pytest.fixture
def counted():
    """What PyTorch counts of the products of one forward and backward pass."""
    pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from vocabench.impls.on_torch.ops import products

    products.words_first(), products.onednn_is_faster()  # whose trials are products too

    def count(layer, inputs):
        work = layer.prepare("layer", inputs.hidden_ND, inputs.targets_N)
        with FlopCounterMode(display=False) as counter:
            work()
        return counter.get_total_flops()

    return count


@pytest.mark.parametrize("method", MOST)
def test_pytorch_counts_no_less(method, counted):
    layer, inputs = make(method, "torch")
    assert 1.0 <= counted(layer, inputs) / least(layer, inputs.targets_N).flops <= MOST[method]


@pytest.mark.parametrize("method", ["sampled_softmax", "nce", "negative_sampling"])
def test_pytorch_counts_the_sampled_words(method, counted):
    """And not the targets, whose scores are no matrix product."""
    layer, inputs = make(method, "torch", samples=40, unique=True)
    assert counted(layer, inputs) == least(layer, inputs.targets_N).flops * 40 / 41


@pytest.mark.parametrize("options", [{}, {"bins": "count"}, {"bins": "random", "levels": 3}])
def test_classes_token_by_token(options):
    layer, inputs = make("class_hsm", **options)
    cluster_V = layer.structure()["cluster"].tolist()
    super_C = layer.structure().get("supercluster", np.zeros(max(cluster_V) + 1, int)).tolist()
    choices = []
    for word in inputs.targets_N.tolist():
        choices += [cluster_V.count(cluster_V[word]), super_C.count(super_C[cluster_V[word]]), max(super_C) + 1]
    assert least(layer, inputs.targets_N).flops == 6 * DIM * sum(size for size in choices if size > 1)


@pytest.mark.parametrize("projection", ["relu", "linear", "residual", "cluster_residual", "none"])
def test_clusters_token_by_token(projection):
    layer, inputs = make("sohsm", projection=projection)
    cluster_V, clusters = layer.structure()["cluster"].tolist(), int(layer.structure()["cluster_count"])
    own = [cluster_V[word] for word in inputs.targets_N.tolist()]
    assert min(cluster_V.count(cluster) for cluster in own) == 1  # where there is nothing to choose
    own = [cluster for cluster in own if cluster_V.count(cluster) > 1]
    scored = TOKENS * clusters + sum(cluster_V.count(cluster) for cluster in own)
    projected = {"none": 0, "relu": 2 * TOKENS, "residual": 2 * TOKENS, "cluster_residual": TOKENS}
    # Without a relu the weights of few clusters or words may be projected in place of many hidden vectors.
    projected["linear"] = min(clusters, TOKENS) + sum(min(own.count(c), cluster_V.count(c)) for c in set(own))
    assert least(layer, inputs.targets_N).flops == 6 * DIM * (scored + DIM * projected[projection])


@pytest.mark.parametrize(("method", "options"), [("huffman", {}), ("binary_tree", {}), ("binary_tree", TREE)])
def test_trees_token_by_token(method, options):
    layer, inputs = make(method, **options)
    children = layer.structure()["children"].tolist()
    leaves = len(children) + 1
    above = {child: leaves + node for node, pair in enumerate(children) for child in pair}
    leaf_word = layer.structure().get("leaf_word", np.arange(VOCAB)).tolist()
    assert (len(leaf_word) > VOCAB) == ("eps" in options)
    turns = 0
    for word in inputs.targets_N.tolist():
        nodes = set()
        for at in [leaf for leaf, own in enumerate(leaf_word) if own == word]:
            while at in above:
                at = above[at]
                nodes.add(at)
        turns += len(nodes)
    assert least(layer, inputs.targets_N).flops == 6 * DIM * turns


def test_a_tail_that_no_target_lies_in_costs_nothing():
    layer, _ = make("adaptive_softmax", cutoffs=(20, 100))
    order_V = layer.structure()["order"]
    head = 22 * DIM
    assert least(layer, order_V[:5]).flops == 6 * 5 * head
    assert least(layer, order_V[[3, 50]]).flops == 6 * (2 * head + 4 * (DIM + 80))
    assert least(layer, order_V[[3, 50]]).bytes == 8 * 2 * (head + 4 * (DIM + 80) + 2 * DIM)


def test_word_vectors_are_not_made_where_it_is_cheaper_to_project_the_hidden_ones():
    few, many = (make("cnn_softmax", tokens=tokens, filters=1, correction=0) for tokens in (1, 10**4))
    filters = 12 * 10 * 16  # digits and two marks, places in the filters of all widths, width of a character
    assert least(few[0], few[1].targets_N).flops == 6 * (filters + 4 * (DIM + VOCAB))
    wide = make("cnn_softmax", tokens=10**4, filters=64, correction=0)
    assert least(wide[0], wide[1].targets_N).flops == 6 * (64 * filters + DIM * VOCAB * (256 + 10**4))
    assert least(many[0], many[1].targets_N).flops == 6 * (filters + 10**4 * 4 * (DIM + VOCAB))


def test_sampled_words_as_given():
    layer, _ = make("nce")
    found = least(layer, [1, 2], sampled_ids=[2, 7, 7, 9])
    assert found.flops == 6 * 2 * (1 + 3) * DIM
    assert found.bytes == 8 * 2 * (4 * (DIM + 1) + 2 * DIM)


def test_narrow_numbers_move_fewer_bytes():
    pytest.importorskip("torch")
    half, single = (
        least(layers.create("torch", "full_softmax", counts=zipf_counts(50), dim=8, dtype=dtype), np.arange(5))
        for dtype in ("bfloat16", "float32")
    )
    assert (2 * half.bytes, half.flops) == (single.bytes, single.flops)


def test_a_method_may_leave_it_out():
    layer, inputs = make("full_softmax")
    layer.spec = dataclasses.replace(layer.spec, definition=dataclasses.replace(layer.spec.definition, least_work=None))
    assert layer.least_work(inputs.targets_N) is None


def test_bad_targets_are_told():
    layer, _ = make("huffman")
    with pytest.raises(BadInput, match=r"targets\[1\]=300: allowed: word ids from 0 to 299"):
        layer.least_work([0, 300])


def test_a_balanced_tree_by_hand():
    children = random_tree(8, np.random.default_rng(0))
    assert set(from_children(children).code_length) == {3}
    layer = layers.create("numpy", "binary_tree", counts=np.ones(8, int), dim=4, tree="given", children=children)
    found = least(layer, range(8))
    assert found.flops == 6 * 8 * 3 * 4
    assert found.bytes == 8 * 2 * (7 * 5 + 8 * 4)
