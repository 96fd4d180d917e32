"""How the words of a layer are split into parts."""

from itertools import pairwise

import numpy as np
import pytest

from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.structures import huffman, parts


@pytest.mark.parametrize("total", [4, 7, 61])
def test_even_ranges_cover_everything_and_differ_by_one(total):
    ranges = [parts.even_range(total, part, 4) for part in range(4)]
    assert np.concatenate(ranges).tolist() == list(range(total))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def test_cluster_ranges_balance_the_words():
    rng = np.random.default_rng(0)
    cluster_V = rng.choice(60, 3000, p=(weight := rng.random(60)) / weight.sum())
    ends = parts.cluster_ranges(cluster_V, 60, 4)
    assert ends[0] == 0
    assert ends[-1] == 60
    words = [int(((cluster_V >= first) & (cluster_V < end)).sum()) for first, end in pairwise(ends)]
    assert sum(words) == 3000
    assert max(words) - min(words) < 2 * np.bincount(cluster_V).max()


def test_every_part_has_a_cluster_even_if_one_has_nearly_all_words():
    assert parts.cluster_ranges(np.array([3] * 50 + [0, 1, 2]), 4, 4).tolist() == [0, 1, 2, 3, 4]
    assert parts.cluster_ranges(np.array([0] * 50 + [1, 2, 3]), 4, 4).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(BadInput, match="3 clusters in 4 parts: allowed: at least one cluster for each part"):
        parts.cluster_ranges(np.array([0, 1, 2]), 3, 4)


@pytest.mark.parametrize(("vocab", "count"), [(5, 4), (61, 2), (61, 4), (5000, 4), (5000, 8)])
def test_a_tree_is_split_into_whole_subtrees_with_the_paths_of_the_whole(vocab, count):
    counts_V = zipf_counts(vocab)
    tree = huffman.build(counts_V)
    made = parts.tree_parts(tree.children, counts_V, count)
    assert sorted(np.concatenate([part.words_R for part in made]).tolist()) == list(range(vocab))
    own = [part.nodes_J[: len(part.nodes_J) - part.shared] for part in made]
    shared = made[0].nodes_J[len(own[0]) :]
    assert sorted(np.concatenate([*own, shared]).tolist()) == list(range(vocab - 1))
    for part in made:
        local = huffman.from_children(part.children)
        for number, word in enumerate(part.words_R):
            length = tree.code_length[word]
            assert local.code_length[number] == length
            assert part.nodes_J[local.index[number, :length]].tolist() == tree.index[word, :length].tolist()
            assert local.sign[number, :length].tolist() == tree.sign[word, :length].tolist()


def test_parts_of_a_large_tree_have_as_many_nodes_and_about_as_many_tokens():
    counts_V = zipf_counts(20_000)
    made = parts.tree_parts(huffman.build(counts_V).children, counts_V, 4)
    nodes = [len(part.nodes_J) - part.shared for part in made]
    tokens = [counts_V[part.words_R].sum() / counts_V.sum() for part in made]
    assert max(nodes) < 1.05 * min(nodes)
    assert max(tokens) < 0.35
    assert made[0].shared == 256
