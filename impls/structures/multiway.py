"""Trees over words of any arity and depth: as given in nested lists, or Huffman's tree of a given arity.

Inner nodes are numbered by depth: the root is 0, and parents come before their children.

Shape letters in addition to those of `vocabench.impls.spec`: I inner nodes, including the root.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.structures.shelves import Shelves

_SMALL = 8  # groups up to this size share a shelf: a slab has no fewer slots
MOST_LEVELS = 64  # of a tree; paths are stored as an array (V, levels)


@dataclass(frozen=True)
class MultiwayTree:
    """Tree whose leaves are the words. Every inner node has at least two children.

    Attributes:
        node_parent: Inner node (I,) above each inner node; -1 for the root, which is node 0.
        word_parent: Inner node (V,) above each word.
    """

    node_parent: NDArray[np.int64]
    word_parent: NDArray[np.int64]


def from_nested(nested: object, vocab: int, words: Sequence[str] | None = None) -> MultiwayTree:
    """Read a tree from nested lists: a list is an inner node, and anything else in it is a word.

    A list with one element stands for this element, because there is nothing to choose.

    Args:
        nested: The root, a list. Words are ids, or their spelling if `words` has it.
        vocab: Number of words V. Each must be in the tree once.
        words: (V,) spelling of each word.

    Raises:
        BadInput: The lists are not a tree over the words.
    """
    id_of = {} if words is None else {word: number for number, word in enumerate(words)}
    root = _without_single(nested)
    if not isinstance(root, list):
        raise BadInput("option tree holds no inner node: allowed: nested lists of at least two words")
    node_parent, word_parent = [-1], np.full(vocab, -1, dtype=np.int64)
    nodes: deque[tuple[int, list[object], int]] = deque([(0, root, 1)])
    while nodes:
        node, children, level = nodes.popleft()
        if level > MOST_LEVELS:
            raise BadInput(f"option tree has more than {MOST_LEVELS} levels: allowed: up to {MOST_LEVELS}")
        for child in map(_without_single, children):
            if isinstance(child, list):
                nodes.append((len(node_parent), child, level + 1))
                node_parent.append(node)
                continue
            word = _word(child, vocab, id_of, spelled=words is not None)
            if word_parent[word] >= 0:
                raise BadInput(f"option tree has the word {child!r} more than once: allowed: each word once")
            word_parent[word] = node
    _check_complete(word_parent, words)
    return MultiwayTree(np.array(node_parent, dtype=np.int64), word_parent)


def _without_single(nested: object) -> object:
    """Return the first element that is a word or a list of several, going down lists of one element.

    Raises:
        BadInput: A list is empty.
    """
    while isinstance(nested, list) and len(nested) < 2:
        if not nested:
            raise BadInput("option tree has an empty list: allowed: lists of words and lists")
        nested = nested[0]
    return nested


def _word(child: object, vocab: int, id_of: dict[str, int], *, spelled: bool) -> int:
    """Return the id of a leaf.

    Raises:
        BadInput: It is not a word of the vocabulary.
    """
    if isinstance(child, int) and not isinstance(child, bool):
        if 0 <= child < vocab:
            return child
        raise BadInput(f"option tree has the word {child}: allowed: ids from 0 to {vocab - 1}")
    if isinstance(child, str) and child in id_of:
        return id_of[child]
    if isinstance(child, str) and not spelled:
        raise BadInput(
            f"option tree has the word {child!r}, and option words is missing: allowed: ids, or both options"
        )
    allowed = "the words of option words, and ids" if spelled else "ids"
    raise BadInput(f"option tree has the word {str(child)[:40]!r}, which is not in the vocabulary: allowed: {allowed}")


def _check_complete(word_parent: NDArray[np.int64], words: Sequence[str] | None) -> None:
    missing = np.flatnonzero(word_parent < 0)
    if not len(missing):
        return
    first = int(missing[0])
    name = first if words is None else repr(words[first])
    others = f" with {len(missing) - 1:,} others" if len(missing) > 1 else ""
    raise BadInput(f"option tree: word {name} is missing{others}: allowed: each of the {len(word_parent):,} words once")


def huffman(counts_V: NDArray[np.int64], arity: int) -> MultiwayTree:
    """Return Huffman's tree in which every inner node has `arity` children, except perhaps the deepest.

    The first merge takes as many words as are needed for all later ones to be full (Huffman 1952). Ties go to the node
    that was created first; words count as created in the order of their ids.
    """
    vocab = len(counts_V)
    words = np.argsort(counts_V, kind="stable").tolist()
    word_counts = counts_V[words].tolist()
    node_counts: list[int] = []
    created_parent = np.full(vocab + -(-(vocab - 1) // (arity - 1)), -1, dtype=np.int64)  # words, then inner nodes
    next_word = next_node = 0
    taken = 2 + (vocab - 2) % (arity - 1)
    while next_word < vocab or next_node < len(node_counts) - 1:
        node, total = len(node_counts), 0
        for _ in range(taken):
            have_node = next_node < node
            if next_word < vocab and not (have_node and node_counts[next_node] < word_counts[next_word]):
                created_parent[words[next_word]] = node
                total += word_counts[next_word]
                next_word += 1
            else:
                created_parent[vocab + next_node] = node
                total += node_counts[next_node]
                next_node += 1
        node_counts.append(total)
        taken = arity
    return _numbered_by_depth(created_parent[vocab:], created_parent[:vocab])


def _numbered_by_depth(node_parent: NDArray[np.int64], word_parent: NDArray[np.int64]) -> MultiwayTree:
    """Return the tree with its inner nodes numbered by depth. Parents come after their children, and the root last."""
    depth = np.zeros(len(node_parent), dtype=np.int64)
    for node in range(len(node_parent) - 2, -1, -1):
        depth[node] = depth[node_parent[node]] + 1
    order = np.lexsort((-np.arange(len(depth)), depth))
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    parent = np.where(node_parent[order] < 0, -1, number[node_parent[order]])
    return MultiwayTree(parent, number[word_parent])


def node_depths(node_parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the depth (I,) of each inner node, which is 0 for the root."""
    depth, here = np.zeros(len(node_parent), dtype=np.int64), node_parent
    while (inside := here >= 0).any():
        depth += inside
        here = np.where(inside, node_parent[here], -1)
    return depth


def word_depths(tree: MultiwayTree) -> NDArray[np.int64]:
    """Return the number of choices (V,) that lead to each word."""
    return node_depths(tree.node_parent)[tree.word_parent] + 1


def masses(tree: MultiwayTree, mass_V: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the sum (I,) of the masses of the words below each inner node."""
    nodes = len(tree.node_parent)
    mass = np.bincount(tree.word_parent, weights=mass_V, minlength=nodes).astype(np.float64)
    depth = node_depths(tree.node_parent)
    for level in range(int(depth.max()), 0, -1):
        here = np.flatnonzero(depth == level)
        np.add.at(mass, tree.node_parent[here], mass[here])
    return mass


@dataclass(frozen=True)
class Split:
    """The choices of a tree in two parts: at nodes that have inner nodes among their children, and at all others.

    The members of the upper part are the inner nodes without the root, and the words next to them. The members of the
    lower part are the other words, whose siblings are words. In both, siblings form a group.

    Shape letters: A members and G groups of the upper part, B members and H groups of the lower part. X is 1 + A: the
    root, then the upper members.

    Attributes:
        upper_row_A: Row of each upper member in the parameters of the inner nodes without the root, followed by those
            of the words. Members are sorted by depth, inner nodes before words.
        upper_word_A: Word of each upper member; -1 for an inner node.
        upper_group_A: Group of each upper member.
        upper_above_A: The parent of each upper member among the inner nodes of the depth above.
        upper_group_X: Upper group of the children of each of the X; -1 where there is none.
        depth_X: Number of choices before each of the X.
        levels: For each depth, the first upper member, the first that is a word, and one past the last.
        lower_word_B: Word of each lower member, ascending.
        lower_group_B: Group of each lower member.
        lower_group_X: Lower group of the children of each of the X; -1 where there is none.
        lower_parent_H: Position among the X of the node whose children each lower group has.
        way_VL: Upper members on the way from each word up to the root, the word itself included; -1 beyond.
        lower_V: The lower member that each word is; -1 for words of the upper part.
    """

    upper_row_A: NDArray[np.int64]
    upper_word_A: NDArray[np.int64]
    upper_group_A: NDArray[np.int64]
    upper_above_A: NDArray[np.int64]
    upper_group_X: NDArray[np.int64]
    depth_X: NDArray[np.int64]
    levels: tuple[tuple[int, int, int], ...]
    lower_word_B: NDArray[np.int64]
    lower_group_B: NDArray[np.int64]
    lower_group_X: NDArray[np.int64]
    lower_parent_H: NDArray[np.int64]
    way_VL: NDArray[np.int64]
    lower_V: NDArray[np.int64]

    @classmethod
    def of(cls, tree: MultiwayTree) -> Split:
        parent, nodes, vocab = tree.node_parent, len(tree.node_parent), len(tree.word_parent)
        is_upper = np.zeros(nodes, dtype=bool)
        is_upper[parent[1:]] = True
        with_nodes_V = is_upper[tree.word_parent]
        row = np.concatenate([np.arange(nodes - 1), nodes - 1 + np.flatnonzero(with_nodes_V)])
        above = np.concatenate([parent[1:], tree.word_parent[with_nodes_V]])
        depth = node_depths(parent)
        order = np.lexsort((row, row >= nodes - 1, depth[above]))
        row, above = row[order], above[order]
        word_A = np.where(row < nodes - 1, -1, row - (nodes - 1))

        position = np.zeros(nodes, dtype=np.int64)  # among the X
        position[row[word_A < 0] + 1] = np.flatnonzero(word_A < 0) + 1
        parent_A, depth_A = position[above], depth[above]
        levels = _levels(depth_A, word_A)
        lower_word = np.flatnonzero(~with_nodes_V)
        lower_V = _inverse(lower_word, vocab)
        lower_nodes = np.flatnonzero(~is_upper)
        lower_group_X = _inverse(position[lower_nodes], len(row) + 1)
        first_V = np.where(lower_V < 0, 0, position[tree.word_parent])
        first_V[word_A[word_A >= 0]] = np.flatnonzero(word_A >= 0) + 1
        return cls(
            upper_row_A=row,
            upper_word_A=word_A,
            upper_group_A=(np.cumsum(is_upper) - 1)[above],
            upper_above_A=parent_A - np.array([0, *(1 + start for start, *_ in levels)])[depth_A],
            upper_group_X=_inverse(position[is_upper], len(row) + 1),
            depth_X=np.concatenate([[0], depth_A + 1]),
            levels=levels,
            lower_word_B=lower_word,
            lower_group_B=lower_group_X[position[tree.word_parent[lower_word]]],
            lower_group_X=lower_group_X,
            lower_parent_H=position[lower_nodes],
            way_VL=_ways(first_V, np.concatenate([[0], parent_A])),
            lower_V=lower_V,
        )

    @property
    def parameter_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of the upper and of the lower members in the parameters of the inner nodes, then of the words."""
        return self.upper_row_A, self.nodes + self.lower_word_B

    @property
    def member_of_row(self) -> NDArray[np.int64]:
        """The member of each of these rows, counted from the first upper to the last lower member."""
        rows = np.concatenate(self.parameter_rows)
        return _inverse(rows, len(rows))

    @property
    def upper_groups(self) -> int:
        return int((self.upper_group_X >= 0).sum())

    @property
    def single_words(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The words of the upper part, ascending, and the position of each among the X."""
        members = np.flatnonzero(self.upper_word_A >= 0)
        members = members[np.argsort(self.upper_word_A[members])]
        return self.upper_word_A[members], members + 1

    @property
    def nodes(self) -> int:
        """The number of inner nodes without the root."""
        return int((self.upper_word_A < 0).sum())

    @property
    def word_column_V(self) -> NDArray[np.int64]:
        """The column of each word if the lower members are followed by the X."""
        column_V = self.lower_V.copy()
        of_word = self.upper_word_A >= 0
        column_V[self.upper_word_A[of_word]] = len(self.lower_word_B) + 1 + np.flatnonzero(of_word)
        return column_V

    def shelves(self, counts_V: NDArray[np.int64]) -> tuple[Shelves | None, Shelves]:
        """Return the memory layout of both parts; None for an upper part without members, in a tree of one level."""
        lower = Shelves.of(self.lower_group_B, counts_V[self.lower_word_B], small=_SMALL)
        if not len(self.upper_row_A):
            return None, lower
        on_way_VL = self.way_VL >= 0
        tokens_A = np.zeros(len(self.upper_row_A), dtype=np.int64)
        np.add.at(tokens_A, self.way_VL[on_way_VL], np.broadcast_to(counts_V[:, None], on_way_VL.shape)[on_way_VL])
        return Shelves.of(self.upper_group_A, tokens_A, small=_SMALL), lower


def _inverse(places: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return (size,) where each number from 0 is in `places`; -1 where it is not."""
    found = np.full(size, -1, dtype=np.int64)
    found[places] = np.arange(len(places))
    return found


def _levels(depth_A: NDArray[np.int64], word_A: NDArray[np.int64]) -> tuple[tuple[int, int, int], ...]:
    levels = []
    for depth in range(int(depth_A.max(initial=-1)) + 1):
        start, end = (int(np.searchsorted(depth_A, depth, side=side)) for side in ("left", "right"))
        levels.append((start, start + int((word_A[start:end] < 0).sum()), end))
    return tuple(levels)


def _ways(first_V: NDArray[np.int64], above_X: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the upper members (V, L) from each word's first position among the X up to the root, -1 beyond."""
    steps, here_V = [], first_V
    while here_V.any():
        steps.append(here_V - 1)
        here_V = above_X[here_V]
    return np.stack(steps, axis=1) if steps else np.empty((len(first_V), 0), dtype=np.int64)
