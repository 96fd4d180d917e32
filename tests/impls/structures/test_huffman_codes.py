"""Huffman codes against an independent construction, and their shape as a tree."""

import heapq

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabench.impls.structures import huffman

counts = st.lists(st.integers(0, 10**9), min_size=2, max_size=60).filter(any).map(lambda c: np.array(c, dtype=np.int64))


def heap_cost(counts_V: np.ndarray) -> int:
    """Cost of an optimal code: the sum of all merged counts, by a plain heap."""
    heap = counts_V.tolist()
    heapq.heapify(heap)
    cost = 0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        cost += merged
        heapq.heappush(heap, merged)
    return cost


@given(counts)
@settings(max_examples=200, deadline=None)
def test_codes_are_optimal_and_prefix_free(counts_V):
    tree = huffman.build(counts_V)
    assert int((counts_V * tree.code_length).sum()) == heap_cost(counts_V)
    codes = {
        tuple(zip(i[:n].tolist(), s[:n].tolist(), strict=True))
        for i, s, n in zip(tree.index, tree.sign, tree.code_length, strict=True)
    }
    assert len(codes) == len(counts_V)
    assert sum(2.0**-n for n in tree.code_length.tolist()) == 1.0  # Kraft's equality: a full tree
    assert not any(a != b and b[: len(a)] == a for a in codes for b in codes)


@given(counts)
@settings(max_examples=50, deadline=None)
def test_paths_follow_the_children(counts_V):
    tree = huffman.build(counts_V)
    vocab = len(counts_V)
    for word in range(vocab):
        here = 2 * vocab - 2  # the root, as `children` counts nodes
        for node, sign in zip(tree.index[word], tree.sign[word], strict=True):
            if sign == 0:
                break
            assert here == vocab + node
            here = tree.children[node, 0 if sign > 0 else 1]
        assert here == word


def test_ties_go_by_order_of_creation_and_the_rarer_node_is_left():
    tree = huffman.build(np.array([5, 1, 1, 2]))
    assert tree.children.tolist() == [[1, 2], [3, 4], [5, 0]]
    assert tree.code_length.tolist() == [1, 3, 3, 2]
    assert tree.sign[0].tolist() == [-1, 0, 0]


def test_a_chain_as_long_as_the_vocabulary():
    tree = huffman.build(np.array([1, 1, 2, 4, 8, 16, 32]))
    assert tree.code_length.max() == 6
    assert [len(level) for level in huffman.levels(tree.children)] == [1] * 6


def test_levels_hold_every_inner_node_once():
    tree = huffman.build(np.arange(1, 200))
    nodes = np.concatenate(huffman.levels(tree.children))
    assert sorted(nodes.tolist()) == list(range(198))


@given(counts)
@settings(max_examples=50, deadline=None)
def test_words_below_a_node_stand_side_by_side(counts_V):
    tree = huffman.build(counts_V)
    place_V = huffman.places(tree.children)
    assert sorted(place_V.tolist()) == list(range(len(counts_V)))
    for node in range(len(counts_V) - 1):
        below_V = ((tree.index == node) & (tree.sign != 0)).any(axis=1)
        assert np.ptp(place_V[below_V]) == below_V.sum() - 1
