"""Huffman codes of words (Huffman 1952; as used by Mikolov et al. 2013 and Liu et al. 2022, algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class HuffmanTree:
    """Full binary tree over V words with V-1 inner nodes in order of creation, so that the last one is the root.

    Attributes:
        children: Left and right child (V-1, 2) of each inner node. A word has its id, and inner node j has V + j.
        code_length: Number of edges (V,) from the root to each word.
        index: Inner nodes (V, L) on the path from the root, 0 beyond the end of a code.
        sign: Turns (V, L) of the path: +1 for left, -1 for right, 0 beyond the end of a code.
    """

    children: NDArray[np.int64]
    code_length: NDArray[np.int64]
    index: NDArray[np.int64]
    sign: NDArray[np.int8]


def build(counts_V: NDArray[np.int64]) -> HuffmanTree:
    """Merge the two least frequent nodes until one is left; the less frequent becomes the left child.

    Ties go to the node that was created first; words count as created in the order of their ids. The sorted words and
    the inner nodes, whose counts never decrease, form two queues. After sorting, the work is therefore O(V).
    """
    return from_children(_merge(counts_V))


def _merge(counts_V: NDArray[np.int64]) -> NDArray[np.int64]:
    vocab = len(counts_V)
    words = np.argsort(counts_V, kind="stable").tolist()
    word_counts = counts_V[words].tolist()
    node_counts: list[int] = []
    children: list[tuple[int, int]] = []
    next_word = next_node = 0
    for _ in range(vocab - 1):
        pair = []
        total = 0
        for _side in range(2):
            have_node = next_node < len(node_counts)
            if next_word < vocab and not (have_node and node_counts[next_node] < word_counts[next_word]):
                pair.append(words[next_word])
                total += word_counts[next_word]
                next_word += 1
            else:
                pair.append(vocab + next_node)
                total += node_counts[next_node]
                next_node += 1
        children.append((pair[0], pair[1]))
        node_counts.append(total)
    return np.array(children, dtype=np.int64)


def from_children(children: NDArray[np.int64]) -> HuffmanTree:
    """Compute the codes of a full binary tree in the format of `HuffmanTree.children`."""
    nodes = len(children)
    vocab = nodes + 1
    parent = np.full(vocab + nodes, -1, dtype=np.int64)
    side = np.zeros(vocab + nodes, dtype=np.int8)
    for column, sign in ((0, 1), (1, -1)):
        parent[children[:, column]] = np.arange(nodes)
        side[children[:, column]] = sign

    steps, turns = [], []  # from the words up to the root, for all words at once
    here = np.arange(vocab)
    while (parent[here] >= 0).any():
        up = parent[here]
        steps.append(up)
        turns.append(np.where(up >= 0, side[here], 0))
        here = np.where(up >= 0, vocab + up, here)
    upward_index, upward_sign = np.stack(steps, axis=1), np.stack(turns, axis=1)

    code_length = (upward_sign != 0).sum(axis=1)
    depth = upward_sign.shape[1]
    from_root = code_length[:, None] - 1 - np.arange(depth)[None, :]  # (V, L) position in the upward path
    inside = from_root >= 0
    position = np.where(inside, from_root, 0)
    index = np.where(inside, np.take_along_axis(upward_index, position, axis=1), 0)
    sign = np.where(inside, np.take_along_axis(upward_sign, position, axis=1), 0)
    return HuffmanTree(children, code_length.astype(np.int64), index.astype(np.int64), sign.astype(np.int8))


def levels(children: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the inner nodes of each depth, the root first, which allows scoring prefixes level by level."""
    nodes = len(children)
    vocab = nodes + 1
    by_depth, here = [], np.array([nodes - 1])
    while len(here):
        by_depth.append(here)
        below = children[here].ravel()
        here = below[below >= vocab] - vocab
    return by_depth


def words_below(index_FL: NDArray[np.int64], sign_FL: NDArray[np.int8], nodes: int) -> NDArray[np.int64]:
    """Return the numbers (2, nodes) of leaves to the left and to the right of each inner node, from all paths."""
    return np.stack([np.bincount(index_FL[sign_FL == turn], minlength=nodes) for turn in (1, -1)])


def places(children: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position (V,) of each word from left to right in the tree.

    The words below an inner node have adjacent positions.
    """
    vocab = len(children) + 1
    by_depth = levels(children)
    words, first = np.ones(2 * vocab - 1, dtype=np.int64), np.zeros(2 * vocab - 1, dtype=np.int64)
    for nodes in reversed(by_depth):
        words[vocab + nodes] = words[children[nodes]].sum(axis=1)
    for nodes in by_depth:
        left, right = children[nodes].T
        first[left] = first[vocab + nodes]
        first[right] = first[left] + words[left]
    return first[:vocab]


@dataclass(frozen=True)
class NearRoot:
    """The M inner nodes nearest to the root, which were created last, and the words and subtrees below them.

    Attributes:
        first: First of the M nodes, which are numbered consecutively up to the root.
        words: Ids (A,) of the words directly below these nodes, ascending.
        subtrees: Inner nodes (B,) directly below these nodes.
        turns: Matrix (2M, A + B) with a 1 where the path to the word or subtree of a column turns left (first M rows)
            or right (last M rows) at a node, else 0. The log-probabilities of prefixes are therefore a product of the
            log-probabilities of turns with this matrix.
    """

    first: int
    words: NDArray[np.int64]
    subtrees: NDArray[np.int64]
    turns: NDArray[np.float32]

    @property
    def exits(self) -> NDArray[np.int64]:
        """The words and subtrees (A + B,) of the columns of `turns`, numbered as in `HuffmanTree.children`."""
        return np.concatenate([self.words, self.subtrees + self.first + len(self.turns) // 2 + 1])


def near_root(children: NDArray[np.int64], most: int) -> NearRoot:
    """Return the `NearRoot` of min(most, V-1) nodes."""
    nodes = len(children)
    vocab, count = nodes + 1, min(most, nodes)
    first = nodes - count
    way = {vocab + nodes - 1: np.zeros(2 * count, dtype=np.float32)}
    for node in range(nodes - 1, first - 1, -1):  # parents before children
        here = way.pop(vocab + node)
        for side in (0, 1):
            turned = here.copy()
            turned[side * count + node - first] = 1.0
            way[int(children[node, side])] = turned
    below = sorted(way)
    ids = np.array(below, dtype=np.int64)
    return NearRoot(first, ids[ids < vocab], ids[ids >= vocab] - vocab, np.stack([way[b] for b in below], axis=1))
