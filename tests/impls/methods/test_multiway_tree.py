"""Softmax over trees of any arity: against methods that it contains, and on trees of many shapes in every framework."""

import json
import re

import numpy as np
import pytest

from tests import ROOT
from vocabench.harness import layer_file, layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.resizing import carried_over, resized
from vocabench.impls.structures import huffman, multiway

FRAMEWORKS = [f for f in registry.installed_frameworks() if f != "numpy"]


def chain(vocab):
    """One word at each node, two at the last."""
    nested: object = [vocab - 2, vocab - 1]
    for word in reversed(range(vocab - 2)):
        nested = [word, nested]
    return nested


TREES = {
    "one level": list(range(40)),
    "two levels": [list(range(25)), list(range(25, 28)), list(range(28, 40))],
    "uneven": [0, [1, 2, [3, 4, [*range(5, 17)]]], [*range(17, 21)], [[21, 22], 23, [24, [25, 26], [*range(27, 40)]]]],
    "a chain": chain(40),
}
COMPILED = ("one level", "uneven")  # compiling for one shape takes TensorFlow or JAX most of a minute


def layer_of(framework, tree, dim=10, **options):
    counts_V = np.random.default_rng(3).permutation(zipf_counts(40))
    return layers.create(framework, "multiway_tree", counts=counts_V, dim=dim, seed=2, tree=tree, **options)


@pytest.mark.lengthy
@pytest.mark.many_cells
@pytest.mark.parametrize(
    ("framework", "shape"), [(f, shape) for f in FRAMEWORKS for shape in (TREES if f == "torch" else COMPILED)]
)
def test_agrees_with_the_definition(framework, shape):
    layer, oracle = (layer_of(each, TREES[shape], dtype="float64") for each in (framework, "numpy"))
    params = {
        name: np.random.default_rng(len(name)).standard_normal(value.shape)
        for name, value in oracle.parameters().items()
    }
    for each in (layer, oracle):
        each.load(params)
    inputs = batch(layer.spec.counts, tokens=80, dim=10, seed=3)
    found = agreement.check_layer(layer, inputs, k=12)
    assert [str(c) for c in found if not c.agrees] == []
    uniforms_NU = np.random.default_rng(0).random((80, layer.spec.draws))
    assert layer.sample(inputs.hidden_ND, uniforms_NU).tolist() == oracle.sample(inputs.hidden_ND, uniforms_NU).tolist()
    for k, width in ((1, 1), (3, 5), (12, 40)) if framework == "torch" else ((3, 5),):
        expected_NK, expected_ids_NK = oracle.beam(inputs.hidden_ND, k, width)
        values_NK, ids_NK = layer.beam(inputs.hidden_ND, k, width)
        np.testing.assert_allclose(values_NK, expected_NK, rtol=1e-9)
        assert ids_NK.tolist() == expected_ids_NK.tolist()


def test_one_level_is_full_softmax():
    tree, plain = layer_of("numpy", TREES["one level"]), layers.create("numpy", "full_softmax", counts=[1] * 40, dim=10)
    params = tree.parameters()
    plain.load({"weight": params["leaf_weight"], "bias": params["leaf_bias"]})
    inputs = batch(tree.spec.counts, tokens=30, dim=10, seed=3)
    np.testing.assert_allclose(tree.log_probs(inputs.hidden_ND), plain.log_probs(inputs.hidden_ND), rtol=1e-12)
    ours, theirs = (each.loss_and_grads(inputs.hidden_ND, inputs.targets_N) for each in (tree, plain))
    np.testing.assert_allclose(ours[1], theirs[1], atol=1e-14)
    np.testing.assert_allclose(ours[2]["leaf_weight"], theirs[2]["weight"], atol=1e-14)


def test_two_levels_are_class_hsm():
    tree = layer_of("numpy", TREES["two levels"])
    classes = layers.create(
        "numpy", "class_hsm", counts=tree.spec.counts, dim=10, bins="given", cluster=[0] * 25 + [1] * 3 + [2] * 12
    )
    names = {"node": "class", "leaf": "word"}
    classes.load({f"{names[name[:4]]}{name[4:]}": value for name, value in tree.parameters().items()})
    inputs = batch(tree.spec.counts, tokens=30, dim=10, seed=3)
    np.testing.assert_allclose(tree.log_probs(inputs.hidden_ND), classes.log_probs(inputs.hidden_ND), rtol=1e-12)


def test_two_children_everywhere_are_a_binary_tree():
    """The vector of an inner node there is the difference of those of its children here."""
    counts_V = zipf_counts(40)
    children = huffman.build(counts_V).children

    def nested(node):
        return node if node < 40 else [nested(int(child)) for child in children[node - 40]]

    tree = layers.create("numpy", "multiway_tree", counts=counts_V, dim=6, tree=nested(78), seed=1)
    binary = layers.create("numpy", "binary_tree", counts=counts_V, dim=6, tree="given", children=children)
    params, read = tree.parameters(), multiway.from_nested(nested(78), 40)
    assert binary.parameters()["node_bias"].shape == (39,)

    def of_child(kind, child, parent_here):
        """The parameter of a child, an inner node of the binary tree or a word."""
        if child < 40:
            return params[f"leaf_{kind}"][child]
        return params[f"node_{kind}"][parent_here[child] - 1]

    here = {78: 0}  # the number in this tree of each inner node of the binary tree
    for node in range(78, 39, -1):
        inner = [int(child) for child in children[node - 40] if child >= 40]
        places = np.flatnonzero(read.node_parent == here[node])
        here |= dict(zip(inner, map(int, places), strict=True))
    loaded = {
        f"node_{kind}": np.array(
            [of_child(kind, int(left), here) - of_child(kind, int(right), here) for left, right in children]
        )
        for kind in ("weight", "bias")
    }
    binary.load(loaded)
    hidden_ND = np.random.default_rng(0).standard_normal((20, 6))
    np.testing.assert_allclose(tree.log_probs(hidden_ND), binary.log_probs(hidden_ND), rtol=1e-9)


def test_training_starts_from_the_unigram_distribution():
    layer = layer_of("numpy", TREES["uneven"])
    layer.load({name: value * name.endswith("bias") for name, value in layer.parameters().items()})
    expected_V = (layer.spec.counts + 1) / (layer.spec.counts + 1).sum()
    np.testing.assert_allclose(np.exp(layer.log_probs(np.zeros((1, 10)))[0]), expected_V)


def test_a_tree_comes_from_a_file(tmp_path):
    words = [f"w{number}" for number in range(40)]
    path = tmp_path / "tree.json"
    path.write_text(json.dumps([words[:10], [words[10:20], words[20:]]]))
    layer = layer_of("numpy", str(path), words=words)
    assert layer.structure()["word_parent"].tolist() == [1] * 10 + [3] * 10 + [4] * 20
    path.write_text("[[0, 1")
    with pytest.raises(BadInput, match="is no JSON file"):
        layer_of("numpy", str(path))
    with pytest.raises(BadInput, match="words has 3 words: allowed: 40"):
        layer_of("numpy", None, words=["a", "b", "c"])
    with pytest.raises(BadInput, match="allowed: nested lists"):
        layer_of("numpy", 7)


def test_a_layer_goes_to_a_file_and_back(tmp_path):
    layer, path = layer_of("numpy", TREES["uneven"]), tmp_path / "layer.npz"
    inputs = batch(layer.spec.counts, tokens=5, dim=10, seed=3)
    layer_file.save(path, layer, inputs.hidden_ND, inputs.targets_N)
    loaded = layer_file.load(str(path))
    spec = layers.spec("multiway_tree", counts=layer.spec.counts, dim=10, seed=2, tree=TREES["uneven"])
    assert loaded.sha256
    assert spec.structure_digest == layer.spec.structure_digest


def test_another_vocabulary_keeps_words_and_nodes_with_the_same_words():
    spec = layers.spec("multiway_tree", counts=zipf_counts(40), dim=4, tree=TREES["two levels"], dtype="float64")
    params = spec.initial_parameters()
    with pytest.raises(BadInput, match="the word 39"):
        resized(spec, zipf_counts(39))
    other = resized(spec, zipf_counts(41), tree=[list(range(28, 40)), [*range(25), 40], list(range(25, 28))])
    made = carried_over(spec, other, params)
    np.testing.assert_array_equal(made["leaf_weight"][:40], params["leaf_weight"])
    np.testing.assert_array_equal(made["node_weight"], params["node_weight"][[2, 0, 1]])


def test_the_example_of_the_page_prints_what_it_says(capsys):
    """The good tree of the example ends lower than the bad one, as printed there."""
    page = (ROOT / "docs" / "methods" / "multiway_tree.md").read_text()
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.split("## In your own model")[0], re.DOTALL):
        exec(block, names)
    printed = capsys.readouterr().out.strip()
    assert f"\n    {printed}\n" in page
    _, good, bad = (float(number) for number in re.findall(r"[0-9.]+", printed))
    assert good < bad
