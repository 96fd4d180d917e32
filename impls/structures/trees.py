"""Binary trees over words: random, by mixtures of two Gaussians (Mnih and Hinton 2009), or given by the caller.

Trees have the format of `huffman.HuffmanTree.children`: a leaf has its id, inner node j has (number of leaves) + j,
children come before their parents, and the root is last. `huffman.from_children` and `huffman.levels` accept them.

Shape letters in addition to those of `vocabench.impls.spec`: E width of a word vector, R members of a set to split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.structures import huffman

RULES = ("balanced", "adaptive", "adaptive_eps")
MOST_CODES = 8

_EM_STEPS = 10
_SETTLED = 1e-3  # EM stops once no responsibility changes by more
_AXIS_STEPS = 3  # power iterations from a random direction towards the principal axis
_NARROWEST = 1e-6  # least variance of a component relative to the whole set; a single word would have none
_FEWEST_SHARED = 8  # smaller sets are split without shared words
_FREE_DEPTH = 64  # deeper splits are balanced; splitting off outliers one by one could make codes of length V

Split = Callable[[NDArray[np.int64], int], tuple[NDArray[np.int64], NDArray[np.int64]]]


@dataclass(frozen=True)
class Tree:
    """Full binary tree whose leaves stand for words. A word has one or more leaves.

    Attributes:
        children: Left and right child (leaves-1, 2) of each inner node. A leaf has its id, and inner node j has
            leaves + j.
        leaf_word: Word (leaves,) of each leaf, in non-decreasing order; 0 .. V-1 if each word has one leaf.
    """

    children: NDArray[np.int64]
    leaf_word: NDArray[np.int64]


def random_tree(leaves: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the children (leaves-1, 2) of a balanced tree over the leaves in random order.

    The halves of each split differ by at most one leaf.

    Raises:
        BadInput: Fewer than two leaves.
    """
    if leaves < 2:
        raise BadInput(f"leaves={leaves}: allowed: a whole number from 2")
    return _grow(rng.permutation(leaves), lambda ids, depth: _halves(ids)).children


def mixture_tree(
    vectors_VE: ArrayLike, rule: str, eps: float, rng: np.random.Generator, most_codes: int = MOST_CODES
) -> Tree:
    """Split words recursively by mixtures of two spherical Gaussians fitted to their vectors.

    This follows Mnih and Hinton 2009. EM starts from the two sides of the mean along the approximate principal axis,
    which a few power iterations find from a random direction, and takes at most ten steps. Words are then split by the
    responsibilities of the first component:

        balanced      the half with the larger responsibilities against the rest: sizes differ by at most one
        adaptive      each word goes to the more probable component
        adaptive_eps  as `adaptive`, but words with a responsibility within `eps` of 1/2 go to both sides

    A split with an empty side is replaced by a balanced one, with ties broken at random. The same applies to all splits
    64 or more levels below the root. A word goes to one side only if the set has fewer than 8 words, if the word
    already has `most_codes` leaves, or if a side would contain all words of the set.

    Args:
        vectors_VE: Finite word vectors (V, E); float32 is processed without conversion.
        rule: Rule of splitting, one of `RULES`.
        eps: Tolerance of `adaptive_eps`, from 0 to 0.5.
        rng: Random number generator; the same state yields the same tree.
        most_codes: Largest number of leaves of a word.

    Raises:
        BadInput: An argument is out of range.
    """
    vectors_VE = check_vectors(vectors_VE)
    if rule not in RULES:
        raise unknown("rule", str(rule), RULES)
    if not 0 <= eps <= 0.5:
        raise BadInput(f"eps={eps!r}: allowed: a number from 0 to 0.5")
    if most_codes < 1:
        raise BadInput(f"most_codes={most_codes!r}: allowed: a whole number from 1")
    codes_V = np.ones(len(vectors_VE), dtype=np.int64)

    def split(ids: NDArray[np.int64], depth: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if len(ids) == 2:
            return _halves(ids)
        odds_R = _log_odds(vectors_VE[ids], rng)
        if rule == "balanced" or depth >= _FREE_DEPTH or not 0 < np.count_nonzero(odds_R > 0) < len(ids):
            return _halves(ids[np.lexsort((rng.random(len(ids)), -odds_R))])
        left_R = odds_R > 0
        near_R = np.zeros(len(ids), dtype=bool)
        if rule == "adaptive_eps" and len(ids) >= _FEWEST_SHARED:
            near_R = (np.abs(_sigmoid(odds_R) - 0.5) <= eps) & (codes_V[ids] < most_codes)
            if (left_R | near_R).all() or (~left_R | near_R).all():
                near_R[:] = False
        codes_V[ids[near_R]] += 1
        return ids[left_R | near_R], ids[~left_R | near_R]

    return _grow(np.arange(len(vectors_VE)), split)


def check_vectors(vectors_VE: ArrayLike) -> NDArray[np.floating]:
    """Return a copy of the word vectors (V, E), float32 or float64, scaled to a largest absolute entry of 1.

    Raises:
        BadInput: The vectors are not a matrix of finite floating-point values, or have no columns or fewer than two
            rows.
    """
    array = np.asarray(vectors_VE)
    if array.ndim != 2 or array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise BadInput(
            f"vectors has shape {array.shape} and dtype {array.dtype}: allowed: (words, width) floats up to 64 bits"
        )
    if len(array) < 2 or array.shape[1] < 1:
        raise BadInput(f"vectors has shape {array.shape}: allowed: at least 2 words and 1 entry for each")
    finite_V = np.isfinite(array).all(axis=1)
    if not finite_V.all():
        raise BadInput(f"vectors[{int(finite_V.argmin())}] holds NaN or infinity: allowed: finite numbers")
    copy = array.astype(np.float32 if array.dtype.itemsize <= 4 else np.float64)
    largest = max(float(copy.max()), -float(copy.min()))
    return copy / copy.dtype.type(largest) if largest > 0 else copy


def check_children(children: ArrayLike, vocab: int) -> NDArray[np.int64]:
    """Return `children` as int64 after checking that it is a full binary tree in the format of `HuffmanTree`.

    Raises:
        BadInput: The shape or dtype is wrong, a word is missing or repeated, a node is unreachable or on a cycle, the
            root is not last, or a child comes after its parent.
    """
    array, root = _check_tree(children, vocab)
    last = vocab - 2
    if root != last:
        raise BadInput(f"children: the root is inner node {root}: allowed: the last one, {last}")
    late = (array - vocab >= np.arange(vocab - 1)[:, None]).any(axis=1)
    if late.any():
        node = int(late.argmax())
        raise BadInput(
            f"children[{node}]={array[node].tolist()} names inner node {int(array[node].max()) - vocab}: "
            f"allowed: children before their parents, so inner nodes below {node}"
        )
    return array


def renumber(children: ArrayLike, counts: ArrayLike | None = None) -> NDArray[np.int64]:
    """Return the same tree with its inner nodes sorted. Leaves keep their ids.

    Without `counts`, inner nodes are sorted by descending depth. With the counts (leaves,) of visits to each leaf, they
    are sorted by ascending visits, so that the most visited nodes are last. Ties are broken by descending depth, then
    by the original order. In both cases, parents come after their children, and the root is last.

    Raises:
        BadInput: The tree is not a full binary tree, or the counts are not finite and non-negative for each leaf.
    """
    given = np.asarray(children)
    leaves = len(given) + 1 if given.ndim else 0
    array, root = _check_tree(given, leaves)
    array = _reorder(array, np.append(np.delete(np.arange(leaves - 1), root), root))
    by_depth = huffman.levels(array)
    depth = np.empty(leaves - 1, dtype=np.int64)
    for level, nodes in enumerate(by_depth):
        depth[nodes] = level
    if counts is None:
        return _reorder(array, np.argsort(-depth, kind="stable"))
    visits = np.concatenate([_check_visits(counts, leaves), np.zeros(leaves - 1)])
    for nodes in reversed(by_depth):
        visits[leaves + nodes] = visits[array[nodes]].sum(axis=1)
    return _reorder(array, np.lexsort((-depth, visits[leaves:])))


def _check_tree(children: ArrayLike, leaves: int) -> tuple[NDArray[np.int64], int]:
    """Return `children` as int64 and the root after checking for a full binary tree, in any order of nodes."""
    if leaves < 2:
        raise BadInput(f"children is a tree over {leaves} words: allowed: at least 2")
    array = np.asarray(children)
    if array.shape != (leaves - 1, 2) or array.dtype.kind not in "iu":
        raise BadInput(
            f"children has shape {array.shape} and dtype {array.dtype}: allowed: ({leaves - 1}, 2) whole numbers"
        )
    outside = ((array < 0) | (array > 2 * leaves - 2)).any(axis=1)
    if outside.any():
        node = int(outside.argmax())
        raise BadInput(f"children[{node}]={array[node].tolist()}: allowed: from 0 to {2 * leaves - 2}")
    array = array.astype(np.int64)
    times = np.bincount(array.ravel(), minlength=2 * leaves - 1)
    for wrong, what in ((times[:leaves] == 0, "is missing"), (times[:leaves] > 1, "is there more than once")):
        if wrong.any():
            raise BadInput(f"children: word {int(wrong.argmax())} {what}: allowed: each word once")
    roots = np.flatnonzero(times[leaves:] == 0)
    if len(roots) > 1:
        raise BadInput(
            f"children: inner nodes {roots[0]} and {roots[1]} are no node's child, so one is unreachable: "
            "allowed: one root"
        )
    # All nodes but the root have exactly one parent here, so nodes that the root does not reach are below a cycle.
    root = int(roots[0])
    _check_no_cycle(array, root)
    return array, root


def _check_no_cycle(children: NDArray[np.int64], root: int) -> None:
    leaves = len(children) + 1
    reached = np.zeros(leaves - 1, dtype=bool)
    here = np.array([root])
    while len(here):
        reached[here] = True
        below = children[here].ravel()
        here = below[below >= leaves] - leaves
    if reached.all():
        return
    parent = np.empty(2 * leaves - 1, dtype=np.int64)
    parent[children] = np.arange(leaves - 1)[:, None]
    node, seen = int(reached.argmin()), set()
    while node not in seen:
        seen.add(node)
        node = int(parent[leaves + node])
    raise BadInput(f"children: inner node {node} is on a cycle: allowed: a tree, all of it below the root")


def _check_visits(counts: ArrayLike, leaves: int) -> NDArray[np.float64]:
    array = np.asarray(counts)
    if array.shape != (leaves,) or array.dtype.kind not in "iuf":
        raise BadInput(f"counts has shape {array.shape} and dtype {array.dtype}: allowed: ({leaves},) numbers")
    wrong = ~(np.isfinite(array) & (array >= 0))
    if wrong.any():
        leaf = int(wrong.argmax())
        raise BadInput(f"counts[{leaf}]={array[leaf]}: allowed: finite numbers from 0")
    return array.astype(np.float64)


def _reorder(children: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tree whose inner node i is node `order[i]` of the given one."""
    leaves = len(children) + 1
    name = np.arange(2 * leaves - 1)
    name[leaves + order] = leaves + np.arange(leaves - 1)
    return name[children[order]]


def _grow(words: NDArray[np.int64], split: Split) -> Tree:
    """Build a tree by splitting sets, breadth first, until each set holds one word."""
    leaf_word: list[int] = []
    pairs: list[list[int]] = []  # children of each inner node, from the root: a later inner node, or -1 - leaf
    inner = 1
    sets = deque([(words, 0)])
    while sets:
        ids, depth = sets.popleft()
        pair = []
        for side in split(ids, depth):
            if len(side) == 1:
                pair.append(-1 - len(leaf_word))
                leaf_word.append(int(side[0]))
            else:
                pair.append(inner)
                inner += 1
                sets.append((side, depth + 1))
        pairs.append(pair)
    by_word = np.argsort(leaf_word, kind="stable")
    leaves = len(leaf_word)
    # Inner nodes from the root, then leaves from the last, so that a leaf has index -1 - leaf.
    name = np.empty(2 * leaves - 1, dtype=np.int64)
    name[: leaves - 1] = np.arange(2 * leaves - 2, leaves - 1, -1)
    name[-1 - by_word] = np.arange(leaves)
    return Tree(name[np.array(pairs[::-1])], np.array(leaf_word, dtype=np.int64)[by_word])


def _halves(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    half = (len(ids) + 1) // 2
    return ids[:half], ids[half:]


def _log_odds(vectors_RE: NDArray[np.floating], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the log-odds (R,) of the responsibilities of the two components; 0 if all vectors are equal.

    The responsibilities themselves round to 0 or 1 in many dimensions and could not be sorted.
    """
    points_RE = vectors_RE - vectors_RE[0]  # makes equal vectors exactly 0
    span = np.abs(points_RE).max()
    if span == 0:
        return np.zeros(len(points_RE))
    points_RE /= span
    points_RE -= points_RE.mean(axis=0)
    norms_R = np.einsum("re,re->r", points_RE, points_RE).astype(np.float64)
    width = points_RE.shape[1]
    narrowest = _NARROWEST * norms_R.mean() / width

    odds_R = _along_axis(points_RE, rng)
    share_2R = _two(odds_R > 0)
    for _ in range(_EM_STEPS):
        size_2 = share_2R.sum(axis=1)
        if size_2.min() < 0.5:  # a component with less than half a word has vanished
            return odds_R
        means_2E = (share_2R.astype(points_RE.dtype) @ points_RE) / size_2[:, None].astype(points_RE.dtype)
        lengths_2 = np.einsum("ke,ke->k", means_2E, means_2E).astype(np.float64)
        distance_2R = norms_R - 2.0 * (means_2E @ points_RE.T) + lengths_2[:, None]
        variance_2 = np.maximum((share_2R * distance_2R).sum(axis=1) / (width * size_2), narrowest)
        score_2R = (np.log(size_2) - 0.5 * width * np.log(variance_2))[:, None] - 0.5 * distance_2R / variance_2[
            :, None
        ]
        odds_R = score_2R[0] - score_2R[1]
        before_R, share_2R = share_2R[0], _two(_sigmoid(odds_R))
        if np.abs(share_2R[0] - before_R).max() < _SETTLED:
            break
    return odds_R


def _along_axis(points_RE: NDArray[np.floating], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return positions (R,) along the approximate principal axis of the points, whose mean is 0."""
    axis_E = rng.standard_normal(points_RE.shape[1]).astype(points_RE.dtype)
    for _ in range(_AXIS_STEPS):
        turned_E = (points_RE @ axis_E) @ points_RE
        length = float(np.abs(turned_E).max())
        if length == 0:
            break
        axis_E = turned_E / turned_E.dtype.type(length)
    return (points_RE @ axis_E).astype(np.float64)


def _two(first_R: NDArray) -> NDArray[np.float64]:
    """Return the responsibilities (2, R) of both components, given those of the first."""
    return np.stack([first_R, 1.0 - first_R])


def _sigmoid(odds_R: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 + 0.5 * np.tanh(0.5 * odds_R)


def words_of_leaves(structure: Mapping[str, NDArray], vocab: int) -> NDArray[np.int64]:
    """Return the word (leaves,) of each leaf, in ascending order. By default, each word is the leaf of the same id."""
    return structure.get("leaf_word", np.arange(vocab))


def leaves_of_words(leaf_word: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the leaves (V, M) of each word, -1 beyond its last, where M is the largest number of leaves of a word."""
    codes_V = np.bincount(leaf_word)
    first_V = np.cumsum(codes_V) - codes_V  # leaves are sorted by word
    leaf_VM = first_V[:, None] + np.arange(codes_V.max())
    return np.where(np.arange(codes_V.max()) < codes_V[:, None], leaf_VM, -1)
