"""Hierarchical softmax over trees of every kind, against the definition and against Huffman's layer."""

from typing import Any

import numpy as np
import pytest

from tests.impls.structures.test_wordnet import net_files, written
from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.structures import huffman, trees

FRAMEWORKS = [f for f in registry.installed_frameworks() if f != "numpy"]


def vectors(vocab):
    return np.random.default_rng(7).standard_normal((vocab, 3))


def chain(vocab):
    """The deepest tree: each inner node has one word on the left, the last has two."""
    inner = np.arange(vocab, 2 * vocab - 2)
    return np.stack([np.arange(2, vocab), inner], axis=1), np.array([[0, 1]])


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("tree", ["random", "balanced", "adaptive", "adaptive_eps", "given"])
def test_agrees_with_the_definition(framework, tree):
    vocab = 30 if tree == "given" else 90
    counts_V = np.random.default_rng(3).permutation(zipf_counts(vocab))
    options = {}
    if tree == "given":
        rest, first = chain(vocab)
        options["children"] = np.concatenate([first, rest])
    elif tree != "random":
        options["vectors"] = vectors(90)
    layer = layers.create(framework, "binary_tree", counts=counts_V, dim=10, seed=2, tree=tree, eps=0.4, **options)
    codes_V = np.bincount(layer.structure()["leaf_word"])
    assert (codes_V.max() > 1) == (tree == "adaptive_eps")
    inputs = batch(counts_V, tokens=80, dim=10, seed=3)
    found = [*agreement.check_layer(layer, inputs, k=12), agreement.check_ties(layer, inputs, k=12)]
    assert [str(c) for c in found if not c.agrees] == []


def test_several_codes_are_summed():
    """The word's probability is the sum over its leaves, each the product of its turns."""
    layer = layers.create(
        "numpy", "binary_tree", counts=zipf_counts(40), dim=5, tree="adaptive_eps", eps=0.4, vectors=vectors(40)
    )
    structure, params = layer.structure(), layer.parameters()
    hidden_D = np.random.default_rng(1).standard_normal(5)
    turn_M = 1 / (1 + np.exp(-(params["node_weight"] @ hidden_D + params["node_bias"])))
    expected_V = np.zeros(40)
    for leaf, word in enumerate(structure["leaf_word"]):
        length = structure["code_length"][leaf]
        at, sign = structure["index"][leaf, :length], structure["sign"][leaf, :length]
        expected_V[word] += np.prod(np.where(sign > 0, turn_M[at], 1 - turn_M[at]))
    assert np.bincount(structure["leaf_word"]).max() > 1
    np.testing.assert_allclose(np.exp(layer.log_probs(hidden_D[None])[0]), expected_V)
    assert expected_V.sum() == pytest.approx(1)


def test_huffmans_tree_given_is_the_huffman_layer():
    counts_V = zipf_counts(60)
    tree = layers.create(
        "numpy", "binary_tree", counts=counts_V, dim=4, tree="given", children=huffman.build(counts_V).children
    )
    ours = layers.create("numpy", "huffman", counts=counts_V, dim=4)
    tree.load({**ours.parameters(), "node_bias": np.zeros(59)})
    inputs = batch(counts_V, tokens=30, dim=4, seed=3)
    np.testing.assert_array_equal(tree.log_probs(inputs.hidden_ND), ours.log_probs(inputs.hidden_ND))
    np.testing.assert_array_equal(
        tree.loss_and_grads(inputs.hidden_ND, inputs.targets_N)[2]["node_weight"],
        ours.loss_and_grads(inputs.hidden_ND, inputs.targets_N)[2]["node_weight"],
    )


def test_training_starts_from_the_unigram_distribution():
    counts_V = zipf_counts(80)
    for options in ({}, {"tree": "adaptive_eps", "eps": 0.4, "vectors": vectors(80)}):
        layer = layers.create("numpy", "binary_tree", counts=counts_V, dim=4, **options)
        layer.load({n: np.zeros_like(v) if n.endswith("weight") else v for n, v in layer.parameters().items()})
        expected = np.log((counts_V + 1) / (counts_V + 1).sum())
        np.testing.assert_allclose(layer.log_probs(np.ones((1, 4)))[0], expected)


def test_nodes_visited_most_are_the_last():
    counts_V = zipf_counts(300)
    spec = layers.spec("binary_tree", counts=counts_V, dim=4)
    visits = np.concatenate([counts_V.astype(float), np.zeros(299)])
    for nodes in reversed(huffman.levels(spec.structure["children"])):
        visits[300 + nodes] = visits[spec.structure["children"][nodes]].sum(axis=1)
    assert (np.diff(visits[300:]) >= 0).all()
    trees.check_children(spec.structure["children"], 300)


def test_a_tree_from_wordnet(tmp_path):
    """Words of one kind are nearer to each other than to others, and every framework takes such a tree."""
    folder = written(tmp_path, net_files()[0])
    words = ["zumf", "rex", "drill", "go", "red", "soon", "nothing_of_the_kind"]
    for framework in ("numpy", *FRAMEWORKS):
        layer = layers.create(
            framework, "binary_tree", counts=zipf_counts(7), dim=4, tree="wordnet", wordnet=str(folder), words=words
        )
        structure = layer.structure()
        trees.check_children(structure["children"], 7)
        common = set(structure["index"][0, : structure["code_length"][0]].tolist())
        shared = [len(common & set(structure["index"][w, : structure["code_length"][w]].tolist())) for w in (1, 4)]
        assert shared[0] > shared[1]
        inputs = batch(zipf_counts(7), tokens=20, dim=4, seed=3)
        if framework != "numpy":
            assert [str(c) for c in agreement.check_layer(layer, inputs, k=3) if not c.agrees] == []
    named: Any = layers.spec(
        "binary_tree", counts=zipf_counts(7), dim=4, tree="wordnet", wordnet=str(folder), words=words
    )
    (folder / "data.noun").write_bytes((folder / "data.noun").read_bytes() + b"\n")
    with pytest.raises(ValueError, match="sha256 begins"):
        layers.spec("binary_tree", counts=zipf_counts(7), dim=4, **named.options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tree": "balanced"}, "vectors is missing"),
        ({"vectors": vectors(30)}, "vectors is given"),
        ({"tree": "adaptive", "vectors": vectors(29)}, "29 rows: allowed: 30"),
        ({"tree": "given"}, "children is missing"),
        ({"tree": "given", "children": np.zeros((29, 2), dtype=np.int64)}, "word 1 is missing"),
        ({"tree": "given", "children": np.ones((29, 2))}, "whole numbers"),
        ({"tree": "given", "children": huffman.build(zipf_counts(29)).children}, "shape"),
        ({"tree": "wordnet"}, "wordnet is missing"),
        ({"tree": "wordnet", "wordnet": "."}, "words is missing"),
        ({"tree": "wordnet", "wordnet": ".", "words": ["a"]}, "1 words: allowed: 30"),
        ({"wordnet": "no/such/folder"}, "no such folder"),
        ({"tree": "huffman"}, "allowed: 'random'"),
        ({"eps": 0.6}, "0.5"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        layers.create("numpy", "binary_tree", counts=zipf_counts(30), dim=4, **options)
