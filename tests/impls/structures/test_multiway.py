"""Trees of any arity: as given, by Huffman, and their two parts."""

import heapq

import numpy as np
import pytest

from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.structures import huffman, multiway
from vocabench.impls.structures.multiway import MultiwayTree, Split

WORDS = ["football", "tennis", "golf", "piano", "violin", "guitar"]


def way_of(tree, word):
    """The inner nodes from the root to a word."""
    way, node = [], int(tree.word_parent[word])
    while node >= 0:
        way.append(node)
        node = int(tree.node_parent[node])
    return way[::-1]


def test_nested_lists_are_read_by_depth():
    tree = multiway.from_nested([[0, 1, 2], 3, [4, [5, 6]]], 7)
    assert tree.node_parent.tolist() == [-1, 0, 0, 2]
    assert tree.word_parent.tolist() == [1, 1, 1, 0, 2, 3, 3]
    assert [way_of(tree, word) for word in (3, 0, 6)] == [[0], [0, 1], [0, 2, 3]]


def test_words_may_be_spelled():
    spelled = multiway.from_nested([WORDS[:3], ["piano", 4, "guitar"]], 6, WORDS)
    by_id = multiway.from_nested([[0, 1, 2], [3, 4, 5]], 6)
    assert spelled.word_parent.tolist() == by_id.word_parent.tolist()


def test_a_list_of_one_element_stands_for_the_element():
    tree = multiway.from_nested([[[0, [1]]], [[2]], 3], 4)
    assert tree.node_parent.tolist() == [-1, 0]
    assert tree.word_parent.tolist() == [1, 1, 0, 0]
    deep: object = [0, 1]
    for _ in range(5000):  # nothing to choose, so no level
        deep = [deep]
    assert multiway.from_nested([deep, 2], 3).node_parent.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("nested", "words", "message"),
    [
        ([[0, 1], 1], None, "the word 1 more than once"),
        ([0, 1], None, "word 2 is missing: allowed: each of the 3 words once"),
        ([0, []], None, "an empty list"),
        ([0, 1, 7], None, "the word 7: allowed: ids from 0 to 2"),
        ([0, 1, True], None, "the word 'True'"),
        ([0, 1, {"a": 2}], None, "which is not in the vocabulary"),
        ([0, "b"], None, "option words is missing"),
        (["a", "b", "x"], ["a", "b", "c"], "the word 'x', which is not in the vocabulary"),
        (["a"], ["a", "b", "c"], "no inner node"),
        (["a", "c"], ["a", "b", "c"], "word 'b' is missing"),
        ({"a": 1}, None, "no inner node"),
    ],
)
def test_what_is_no_tree_is_refused(nested, words, message):
    with pytest.raises(BadInput, match=message):
        multiway.from_nested(nested, 3, words)


def test_a_tree_has_a_limited_depth():
    nested: object = [0, 1]
    for word in range(2, 66):
        nested = [nested, word]
    with pytest.raises(BadInput, match="more than 64 levels"):
        multiway.from_nested(nested, 66)


@pytest.mark.parametrize("vocab", [2, 3, 16, 17, 31, 100, 1000])
@pytest.mark.parametrize("arity", [2, 3, 16])
def test_huffmans_tree_is_full_and_as_short_as_can_be(vocab, arity):
    counts_V = np.random.default_rng(1).permutation(zipf_counts(vocab))
    tree = multiway.huffman(counts_V, arity)
    children_I = np.bincount(np.concatenate([tree.node_parent[1:], tree.word_parent]))
    assert sorted(set(children_I.tolist()) | {arity})[-1] == arity
    assert (children_I < arity).sum() <= 1
    assert (children_I > 1).all()
    # The least cost of a code is that of repeated merges of the smallest, filled up with symbols that never occur.
    heap = [*counts_V.tolist(), *([0] * (-(vocab - 1) % (arity - 1)))]
    heapq.heapify(heap)
    cost = 0
    while len(heap) > 1:
        merged = sum(heapq.heappop(heap) for _ in range(arity))
        cost += merged
        heapq.heappush(heap, merged)
    assert int(counts_V @ multiway.word_depths(tree)) == cost


def test_two_children_make_the_code_of_huffman():
    counts_V = zipf_counts(300)
    depths_V = multiway.word_depths(multiway.huffman(counts_V, 2))
    assert int(counts_V @ depths_V) == int(counts_V @ huffman.build(counts_V).code_length)


@pytest.mark.parametrize(
    "tree",
    [
        multiway.from_nested([[0, 1, 2], 3, [4, [5, 6]], 7], 8),
        multiway.from_nested([0, 1, 2], 3),
        multiway.huffman(zipf_counts(200), 3),
        multiway.huffman(zipf_counts(200), 16),
    ],
)
def test_the_two_parts_hold_every_choice_once(tree: MultiwayTree):
    split, vocab = Split.of(tree), len(tree.word_parent)
    upper, _ = split.shelves(np.arange(vocab) + 1)
    assert (upper is None) == (len(tree.node_parent) == 1)
    rows = np.concatenate(split.parameter_rows)
    assert sorted(rows.tolist()) == list(range(split.nodes + vocab))
    np.testing.assert_array_equal(rows[split.member_of_row], np.arange(len(rows)))
    parent_M = np.concatenate([tree.node_parent[1:], tree.word_parent])
    for group_M, rows_M in ((split.upper_group_A, split.upper_row_A), (split.lower_group_B, split.parameter_rows[1])):
        # Members have the same group if and only if they have the same parent, and no sibling is in the other part.
        pairs = {(int(group), int(parent)) for group, parent in zip(group_M, parent_M[rows_M], strict=True)}
        assert len(pairs) == len({group for group, _ in pairs}) == len({parent for _, parent in pairs})
        for _, parent in pairs:
            assert (parent_M == parent).sum() == (parent_M[rows_M] == parent).sum()
    for word in range(vocab):
        steps = [int(step) for step in split.way_VL[word] if step >= 0]
        length = len(way_of(tree, word))
        assert len(steps) + (split.lower_V[word] >= 0) == length
        if split.lower_V[word] >= 0:
            assert split.lower_word_B[split.lower_V[word]] == word
        else:
            assert split.upper_word_A[steps[0]] == word
        below = steps if split.lower_V[word] < 0 else [None, *steps]
        for member, node in zip(below, reversed(way_of(tree, word)), strict=True):
            if member is not None:
                assert parent_M[split.upper_row_A[member]] == node
