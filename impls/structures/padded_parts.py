"""The parts of a binary tree as arrays that have the same shape for every part, as devices of a mesh need them.

Shape letters in addition to those of `vocabench.impls.spec`: P parts, W words of a part, R inner nodes of a part that
are not shared, S shared inner nodes, A turns at shared nodes, L turns below them, B inner nodes of a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.spec import Arrays
from vocabench.impls.structures import parts

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Level:
    """The inner nodes of one depth in every part's tree. Zeros at the end are padding.

    Attributes:
        node_PB: The nodes.
        place_PB: Their places among the children of the level above: the two of its first node, then those of its
            second, and so on. The root is at place 0.
    """

    node_PB: Ints
    place_PB: Ints


@dataclass(frozen=True)
class PaddedParts:
    """The parts of a tree (`parts.TreePart`), with as many words and nodes in each as in the largest.

    The words of a part are its first ones, and its inner nodes are its last rows: the nodes visited most stay last. The
    tree of a part has R + S inner nodes, of which the shared ones are the last.

    Attributes:
        part_V: The part of each word.
        number_V: The number of each word in its part.
        exit_V: The last turn to each word at a shared node: 2 s at node s to the left, 2 s + 1 to the right.
        turns_XA: The turns at shared nodes (2 S, A) that lead to each such exit: s + 1 at node s to the left,
            -(s + 1) to the right, 0 beyond the end.
        word_PW: The words of each part, ascending; V in padding.
        row_M: Where the inner nodes that are not shared (M,) are among the P R rows.
        node_PR: The inner nodes of each part, ascending; -1 in padding, which comes first.
        shared: S.
        index_PWL: Rows on the path of each word, below the shared nodes.
        sign_PWL: Turns of that path: 1 left, -1 right, 0 beyond its end.
        children_PJ2: Children of the inner nodes of each part's tree: the word number i is i, and inner node j is
            R + S + 1 + j. The other numbers stand for what other parts hold.
        levels: The inner nodes of each part's tree by depth, the root first.
        leaf_PW: The place of each word among the children of all levels, one level after the other.
    """

    part_V: Ints
    number_V: Ints
    exit_V: Ints
    turns_XA: Ints
    word_PW: Ints
    row_M: Ints
    node_PR: Ints
    shared: int
    index_PWL: Ints
    sign_PWL: Ints
    children_PJ2: Ints
    levels: tuple[Level, ...]
    leaf_PW: Ints

    @classmethod
    def of(cls, structure: Arrays, counts_V: Ints, count: int) -> PaddedParts:
        """Return so many parts of a Huffman tree.

        Args:
            structure: `children`, `index` and `sign` of the tree, as in `huffman.HuffmanTree`.
            counts_V: Counts of the words.
            count: Number of parts.
        """
        made = parts.tree_parts(structure["children"], counts_V, count)
        shared, nodes = made[0].shared, len(structure["children"])
        word_PW = _padded([part.words_R for part in made], fill=nodes + 1)
        node_PR = _padded([part.nodes_J[: len(part.nodes_J) - shared] for part in made], fill=-1, at_end=False)
        part_V, number_V = (np.empty(nodes + 1, dtype=np.int64) for _ in range(2))
        for number, part in enumerate(made):
            part_V[part.words_R], number_V[part.words_R] = number, np.arange(len(part.words_R))
        row_M, rows = np.empty(nodes - shared, dtype=np.int64), node_PR.shape[1]
        row_M[node_PR[node_PR >= 0]] = np.flatnonzero(node_PR >= 0)
        exit_V, turns_XA = _exits(structure, nodes - shared)
        index_VL, sign_VL = _below_shared(structure, row_M % rows)
        word_of = np.minimum(word_PW, nodes)  # any word in padding
        children_PJ2 = np.stack([_children(part, rows) for part in made])
        levels, leaf_PW = _levels(children_PJ2, word_PW.shape[1])
        return cls(
            *(part_V, number_V, exit_V, turns_XA, word_PW, row_M, node_PR, shared),
            *(index_VL[word_of], sign_VL[word_of], children_PJ2, levels, leaf_PW),
        )


def _padded(lists: Sequence[Ints], fill: int, at_end: bool = True) -> Ints:
    """Return lists as rows of the same length, of at least 1."""
    length = max(1, *map(len, lists))
    filled = np.full((len(lists), length), fill, dtype=np.int64)
    for row, values in zip(filled, lists, strict=True):
        row[slice(0, len(values)) if at_end else slice(length - len(values), None)] = values
    return filled


def _exits(structure: Arrays, first: int) -> tuple[Ints, Ints]:
    """Return `exit_V` and `turns_XA` of a tree whose shared nodes begin with this one."""
    index_VL, sign_VL = structure["index"], structure["sign"].astype(np.int64)
    is_shared_VL = (sign_VL != 0) & (index_VL >= first)
    length_V = is_shared_VL.sum(axis=1)
    last_V1 = length_V[:, None] - 1
    node_V, sign_V = (np.take_along_axis(array, last_V1, axis=1)[:, 0] for array in (index_VL, sign_VL))
    exit_V = 2 * (node_V - first) + (sign_V < 0)
    exits, word = np.unique(exit_V, return_index=True)
    turns_VA = np.where(is_shared_VL, sign_VL * (index_VL - first + 1), 0)[:, : length_V.max()]
    turns_XA = np.zeros((2 * (len(structure["children"]) - first), turns_VA.shape[1]), dtype=np.int64)
    turns_XA[exits] = turns_VA[word]
    return exit_V, turns_XA


def _below_shared(structure: Arrays, row_M: Ints) -> tuple[Ints, Ints]:
    """Return the rows (V, L) on each path below the shared nodes, and its turns, with L of at least 1."""
    index_VL, sign_VL = structure["index"], structure["sign"].astype(np.int64)
    is_own_VL = (sign_VL != 0) & (index_VL < len(row_M))
    before_V1 = ((sign_VL != 0) & ~is_own_VL).sum(axis=1, keepdims=True)
    step_VL = before_V1 + np.arange(max(1, is_own_VL.sum(axis=1).max()))
    inside_VL = step_VL < (sign_VL != 0).sum(axis=1, keepdims=True)
    step_VL = np.where(inside_VL, step_VL, 0)
    node_VL = np.where(inside_VL, np.take_along_axis(index_VL, step_VL, axis=1), -1)
    row_VL = np.append(row_M, 0)[node_VL]  # 0 beyond the end, for node -1
    return row_VL, np.where(inside_VL, np.take_along_axis(sign_VL, step_VL, axis=1), 0)


def _children(part: parts.TreePart, rows: int) -> Ints:
    """Return the children (R + S, 2) of a part's tree with so many rows for inner nodes that are not shared."""
    nodes = len(part.nodes_J)
    pad = rows + part.shared - nodes
    # Inner nodes move behind the padding, and so do their numbers behind the leaves.
    moved = np.where(part.children > nodes, part.children + 2 * pad, part.children)
    return np.concatenate([np.zeros((pad, 2), dtype=np.int64), moved])


def _levels(children_PJ2: Ints, words: int) -> tuple[tuple[Level, ...], Ints]:
    """Return `levels` and `leaf_PW` of the trees of all parts, with room for so many words."""
    leaves = children_PJ2.shape[1] + 1
    count = len(children_PJ2)
    leaf_PF = np.zeros((count, leaves), dtype=np.int64)
    below = [np.array([2 * leaves - 2])] * count  # the roots
    levels: list[Level] = []
    begin = 0
    while any((numbers >= leaves).any() for numbers in below):
        place = [np.flatnonzero(numbers >= leaves) for numbers in below]
        node = [numbers[at] - leaves for numbers, at in zip(below, place, strict=True)]
        levels.append(Level(_padded(node, fill=0), _padded(place, fill=0)))
        below = [children[at].ravel() for children, at in zip(children_PJ2, node, strict=True)]
        for leaf_F, numbers in zip(leaf_PF, below, strict=True):
            at = np.flatnonzero(numbers < leaves)
            leaf_F[numbers[at]] = begin + at
        begin += 2 * levels[-1].node_PB.shape[1]
    return tuple(levels), leaf_PF[:, :words]
