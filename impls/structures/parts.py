"""How the words of a layer are split into parts, one for each of several devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.structures import huffman

# Nodes nearest the root that every part holds. The subtrees below them have about the same number of tokens each, and
# are so many that they can be spread evenly.
_SHARED_FOR_EACH, _MOST_SHARED, _LEAST_SUBTREE = 64, 512, 8


def even_range(total: int, part: int, parts: int) -> NDArray[np.int64]:
    """Return the numbers of one of several consecutive ranges, which differ by at most one in size."""
    return np.arange(part * total // parts, (part + 1) * total // parts)


def cluster_ranges(cluster_V: NDArray[np.int64], clusters: int, parts: int) -> NDArray[np.int64]:
    """Return where consecutive ranges of clusters begin and end (parts + 1,), with about as many words in each.

    Raises:
        BadInput: There are fewer clusters than parts.
    """
    if clusters < parts:
        raise BadInput(f"{clusters} clusters in {parts} parts: allowed: at least one cluster for each part")
    words_C = np.concatenate([[0], np.cumsum(np.bincount(cluster_V, minlength=clusters))])
    ends = [0]
    for part in range(1, parts):
        nearest = int(np.abs(words_C - len(cluster_V) * part / parts).argmin())
        ends.append(min(max(nearest, ends[-1] + 1), clusters - parts + part))
    return np.array([*ends, clusters])


@dataclass(frozen=True)
class TreePart:
    """The part of a binary tree that one device holds: whole subtrees, and the nodes above all subtrees.

    Attributes:
        words_R: The words of the part, ascending.
        nodes_J: The inner nodes of the part, ascending; the shared ones, which every part holds, come last.
        shared: Number of shared nodes.
        children: Children (J, 2) of these nodes: the word number `words_R[i]` is i, and then come the leaves that stand
            for what other parts hold; the inner node `nodes_J[j]` is the number of leaves plus j.
    """

    words_R: NDArray[np.int64]
    nodes_J: NDArray[np.int64]
    shared: int
    children: NDArray[np.int64]


def shared_nodes(nodes: int, parts: int) -> int:
    """Return how many nodes nearest the root every part holds."""
    return max(1, min(_SHARED_FOR_EACH * parts, _MOST_SHARED, nodes // _LEAST_SUBTREE))


def tree_parts(children: NDArray[np.int64], counts_V: NDArray[np.int64], parts: int) -> list[TreePart]:
    """Split a tree into parts with about as many nodes each.

    Nodes are numbered so that children come before their parents and the nodes visited most come last, as in
    `huffman.build`. Words directly below the shared nodes, which are the most frequent ones, go to the parts that have
    the fewest tokens.
    """
    nodes = len(children)
    vocab, shared = nodes + 1, shared_nodes(nodes, parts)
    below = children[nodes - shared :].ravel()
    below = below[below < vocab + nodes - shared]  # what is not shared itself
    part_X = np.full(vocab + nodes, -1, dtype=np.int64)  # of words and inner nodes; -1 for shared nodes
    top_X = np.full(vocab + nodes, -1, dtype=np.int64)  # the word or subtree below the shared nodes
    top_X[below] = below
    for level in huffman.levels(children):
        inside = level[top_X[vocab + level] >= 0]
        top_X[children[inside]] = top_X[vocab + inside][:, None]
    words_X = np.bincount(top_X[:vocab], minlength=vocab + nodes)
    tokens_X = np.bincount(top_X[:vocab], weights=counts_V + 1.0, minlength=vocab + nodes)
    words_P, tokens_P = np.zeros(parts), np.zeros(parts)
    for top in sorted(below.tolist(), key=lambda top: (top < vocab, -words_X[top], -tokens_X[top], top)):
        part = int((tokens_P if top < vocab else words_P).argmin())
        part_X[top] = part
        words_P[part] += words_X[top]
        tokens_P[part] += tokens_X[top]
    part_X = np.where(top_X >= 0, part_X[top_X], -1)
    return [_tree_part(children, part_X, below, part, shared) for part in range(parts)]


def _tree_part(
    children: NDArray[np.int64], part_X: NDArray[np.int64], below: NDArray[np.int64], part: int, shared: int
) -> TreePart:
    nodes = len(children)
    vocab = nodes + 1
    words_R = np.flatnonzero(part_X[:vocab] == part)
    own = np.flatnonzero(part_X[vocab:] == part)
    nodes_J = np.concatenate([own, np.arange(nodes - shared, nodes)])
    others = below[part_X[below] != part]
    number_X = np.full(vocab + nodes, -1, dtype=np.int64)
    number_X[words_R] = np.arange(len(words_R))
    number_X[others] = len(words_R) + np.arange(len(others))
    number_X[vocab + nodes_J] = len(words_R) + len(others) + np.arange(len(nodes_J))
    return TreePart(words_R, nodes_J, shared, number_X[children[nodes_J]])
