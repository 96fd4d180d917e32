"""Search along the paths of a tree, several levels at a time, against a search that is written out."""

import numpy as np
import pytest

from tests.impls.some_trees import chain, random_tree
from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.structures import huffman, path_blocks

FRAMEWORKS = registry.installed_frameworks()
TREES = {
    "huffman": huffman.build(zipf_counts(60)).children,
    "random": random_tree(37),
    "chain": chain(12),
    "two words": chain(2),
}


def paths_of(tree):
    """Return the turns, as text of L and R, that lead to each word."""
    found, here = {}, [(2 * len(tree), "")]
    while here:
        node, turns = here.pop()
        if node <= len(tree):
            found[node] = turns
        else:
            left, right = tree[node - len(tree) - 1]
            here += [(left, turns + "L"), (right, turns + "R")]
    return found


@pytest.mark.parametrize("levels", [1, 2, 3, path_blocks.MOST_LEVELS])
@pytest.mark.parametrize("name", TREES)
def test_blocks_lead_to_each_word_by_its_turns(name, levels):
    tree = TREES[name]
    vocab, blocks = len(tree) + 1, path_blocks.blocks(tree, levels)
    expected, found, here = paths_of(tree), {}, [(0, "")]
    while here:
        block, turns = here.pop()
        for path, to in enumerate(blocks.exit_BP[block].tolist()):
            taken = turns + f"{path:0{levels}b}".replace("0", "L").replace("1", "R")
            if to >= vocab:
                here.append((to - vocab, taken))
            elif to >= 0:
                assert to not in found
                found[to] = taken
    assert found.keys() == expected.keys()
    # A word that a path reaches early is as far to the left as its block goes.
    assert all(found[word].startswith(turns) for word, turns in expected.items())
    assert all(set(found[word].removeprefix(turns)) <= {"L"} for word, turns in expected.items())
    nodes = blocks.node_BJ[blocks.node_BJ >= 0]
    assert sorted(nodes.tolist()) == list(range(vocab - 1))


def written_out(tree, log_turn_M2, k, width, levels):
    """Follow the `width` likeliest paths of one distribution. A path is its log-probability and where it is."""
    vocab, kept = len(tree) + 1, [(0.0, 2 * len(tree))]
    while any(node >= vocab for _, node in kept):
        for _ in range(levels):
            kept = [
                (value + turn, int(child))
                for value, node in kept
                for turn, child in (
                    zip(log_turn_M2[node - vocab], tree[node - vocab], strict=True) if node >= vocab else [(0.0, node)]
                )
            ]
        kept = sorted(kept, reverse=True)[:width]
    return [node for _, node in kept[:k]], [value for value, _ in kept[:k]]


@pytest.fixture(scope="module", params=FRAMEWORKS)
def layer(request):
    made = layers.create(request.param, "huffman", counts=zipf_counts(60), dim=5, dtype="float64")
    rng = np.random.default_rng(1)
    made.load({name: 2 * rng.standard_normal(value.shape) for name, value in made.parameters().items()})
    return made


@pytest.mark.parametrize(("k", "width", "levels"), [(1, 1, 2), (3, 3, 2), (3, 4, 3), (5, 20, 2), (2, 2, 1), (4, 6, 5)])
def test_a_search_along_paths_is_the_one_written_out(layer, k, width, levels):
    hidden_ND = np.random.default_rng(2).standard_normal((40, 5))
    params = layer.parameters()
    scores_NM = hidden_ND @ params["node_weight"].T
    values_NK, ids_NK = layer.beam(hidden_ND, k, width, levels)
    tree = layer.structure()["children"]
    for scores_M, values_K, ids_K in zip(scores_NM, values_NK, ids_NK, strict=True):
        log_turn_M2 = -np.logaddexp(0, np.stack([-scores_M, scores_M], axis=1))
        ids, values = written_out(tree, log_turn_M2, k, width, levels)
        assert ids_K.tolist() == ids
        assert values_K == pytest.approx(values, rel=1e-9)


def test_all_paths_give_the_likeliest_words_of_all(layer):
    """An exhaustive search is exact, and more levels between selections lose fewer of the likeliest words."""
    hidden_ND = np.random.default_rng(3).standard_normal((400, 5))
    exact_NK = np.argsort(-layer.log_probs(hidden_ND), axis=1, kind="stable")[:, :4]
    for levels in (2, 3):
        assert layer.beam(hidden_ND, 4, 60, levels)[1].tolist() == exact_NK.tolist()
    found = [layer.beam(hidden_ND, 1, 1, levels)[1][:, 0] == exact_NK[:, 0] for levels in (1, 3, 8)]
    shares = [float(same.mean()) for same in found]
    assert shares == sorted(shares)
    assert shares[0] < 1


def test_layers_without_a_binary_tree_select_at_each_level():
    made = layers.create(FRAMEWORKS[0], "full_softmax", counts=zipf_counts(60), dim=5)
    hidden_ND = np.random.default_rng(3).standard_normal((9, 5))
    assert made.beam(hidden_ND, 3, 5, 2)[1].tolist() == made.topk(hidden_ND, 3)[1].tolist()


@pytest.mark.parametrize("levels", [0, path_blocks.MOST_LEVELS + 1, 1.0, True])
def test_levels_that_cannot_be(layer, levels):
    with pytest.raises(BadInput, match=r"levels=.*: allowed: a whole number from 1 to 8"):
        layer.beam(np.zeros((1, 5)), 1, 1, levels)
