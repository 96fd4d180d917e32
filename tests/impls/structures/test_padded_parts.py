"""The parts of a tree as arrays of the same shape for every part."""

import numpy as np
import pytest

from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.structures import huffman
from vocabench.impls.structures.padded_parts import PaddedParts


def split(vocab, count):
    counts_V = zipf_counts(vocab)
    tree = huffman.build(counts_V)
    structure = {"children": tree.children, "index": tree.index, "sign": tree.sign}
    return tree, PaddedParts.of(structure, counts_V, count)


SIZES = pytest.mark.parametrize(("vocab", "count"), [(2, 1), (2, 4), (5, 4), (61, 1), (61, 2), (61, 4), (3000, 3)])


@SIZES
def test_every_word_and_node_is_in_one_part(vocab, count):
    tree, parts = split(vocab, count)
    assert sorted(parts.word_PW[parts.word_PW < vocab].tolist()) == list(range(vocab))
    assert parts.word_PW[parts.part_V, parts.number_V].tolist() == list(range(vocab))
    assert parts.node_PR.ravel()[parts.row_M].tolist() == list(range(len(tree.children) - parts.shared))
    assert np.count_nonzero(parts.node_PR >= 0) == len(parts.row_M)


@SIZES
def test_shared_turns_and_those_below_make_up_the_path_of_each_word(vocab, count):
    tree, parts = split(vocab, count)
    first = len(parts.row_M)
    for word in range(vocab):
        part, number, length = parts.part_V[word], parts.number_V[word], tree.code_length[word]
        turns_A = parts.turns_XA[parts.exit_V[word]]
        turns_A = turns_A[turns_A != 0]
        sign_L = parts.sign_PWL[part, number]
        index_L = parts.index_PWL[part, number][sign_L != 0]
        nodes = [*(first + np.abs(turns_A) - 1), *parts.node_PR[part, index_L]]
        assert nodes == tree.index[word, :length].tolist()
        assert [*np.sign(turns_A), *sign_L[sign_L != 0]] == tree.sign[word, :length].tolist()


@SIZES
def test_the_children_of_each_part_lead_to_its_words(vocab, count):
    tree, parts = split(vocab, count)
    first, rows = len(parts.row_M), parts.node_PR.shape[1]
    leaves = rows + parts.shared + 1
    for word in range(vocab):
        part, length = parts.part_V[word], tree.code_length[word]
        here, path = 2 * leaves - 2, []
        for sign in tree.sign[word, :length]:
            row = here - leaves
            path.append(parts.node_PR[part, row] if row < rows else first + row - rows)
            here = parts.children_PJ2[part, row, int(sign < 0)]
        assert path == tree.index[word, :length].tolist()
        assert here == parts.number_V[word]


@SIZES
def test_levels_lead_from_the_root_to_every_word(vocab, count):
    """Paths are bit strings: those of a level are made from those of the level above, as probabilities are."""
    tree, parts = split(vocab, count)
    for part, word_W in enumerate(parts.word_PW):
        paths, made = [""], []
        for level in parts.levels:
            paths = [paths[place] + side for place in level.place_PB[part] for side in "LR"]
            made += paths
        for number, word in enumerate(word_W[word_W < vocab]):
            turns = tree.sign[word, : tree.code_length[word]]
            assert made[parts.leaf_PW[part, number]] == "".join("L" if turn > 0 else "R" for turn in turns)


@SIZES
def test_levels_name_the_nodes_of_each_part(vocab, count):
    _, parts = split(vocab, count)
    for part, children_J2 in enumerate(parts.children_PJ2):
        leaves = len(children_J2) + 1
        below = np.array([2 * leaves - 2])
        for level in parts.levels:
            inner = below[below >= leaves] - leaves
            assert level.node_PB[part, : len(inner)].tolist() == inner.tolist()
            assert not level.node_PB[part, len(inner) :].any()
            below = children_J2[inner].ravel()
        assert (below < leaves).all()


def test_nodes_visited_most_are_the_last_rows_and_padding_the_first():
    _, parts = split(61, 4)
    for node_R in parts.node_PR:
        assert (np.diff(node_R[node_R >= 0]) > 0).all()
        assert (node_R >= 0).tolist() == sorted((node_R >= 0).tolist())
