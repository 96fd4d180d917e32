"""Classes of words for class-based hierarchical softmax, by count, at random or by similarity; and classes of classes.

Goodman (2001) and Mikolov et al. (2011): words by falling count, with their cumulative share of all counts cut into
equal parts; with square roots of the counts in place of counts, frequent words take less and classes are of a more even
size. Le et al. (2011) and Chen et al. (2016): spherical k-means on word vectors, here with the caps on size and
frequency of SOHSM's algorithm 1, which keep the cost of a class in hand.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.structures import bigrams, clusters

BINS = ("count", "sqrt_count", "random", "similarity", bigrams.NAME)

# Caps of classes by similarity, as of SOHSM's clusters.
_GAMMA, _BUDGET = 1.5, 0.1
_ROUNDS = 10  # of k-means


def sizes(vocab: int, levels: int) -> list[int]:
    """How many classes there are on each level, the uppermost first: V^(1/2), or V^(1/3) and V^(2/3), rounded up."""
    return [min(vocab, math.ceil(vocab ** (level / levels) - 1e-9)) for level in range(1, levels)]


def by_share(weights_M: NDArray, classes: int) -> NDArray[np.int64]:
    """(M,) the class floor(C x share of the weight of all members before it) of each member, by falling weight; where
    one member takes several parts, the classes left empty are closed up."""
    order = np.argsort(-weights_M, kind="stable")
    weights = weights_M[order].astype(np.float64)
    if not weights.any():
        weights[:] = 1.0
    before = (np.cumsum(weights) - weights) / weights.sum()
    class_M = np.empty(len(order), dtype=np.int64)
    class_M[order] = np.minimum((classes * before).astype(np.int64), classes - 1)
    return np.unique(class_M, return_inverse=True)[1].astype(np.int64)


def at_random(members: int, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(M,) classes whose sizes differ by one at most, drawn at random."""
    class_M = np.empty(members, dtype=np.int64)
    class_M[rng.permutation(members)] = np.arange(members) % classes
    return class_M


def limits(members: int, classes: int) -> clusters.Limits:
    """How much each of so many classes by similarity may hold."""
    budget = max(_BUDGET, _GAMMA / classes)  # few classes must each hold more
    return clusters.limits(members, gamma=_GAMMA, budget=min(budget, 1.0), clusters=classes)


def by_similarity(
    vectors_ME: NDArray[np.floating], counts_M: NDArray[np.int64], bounds: clusters.Limits, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(M,) classes by spherical k-means: each member, by falling count, goes to the class of the nearest mean direction
    that has room (`clusters.organize`), and the means are made anew, until nothing moves or ten times."""
    directions_ME = _unit(vectors_ME.astype(np.float64))
    members = len(directions_ME)
    counts_M = np.maximum(counts_M, 1)
    means_CE = directions_ME[rng.choice(members, bounds.clusters, replace=False)]
    class_M = np.full(members, -1, dtype=np.int64)
    for _ in range(_ROUNDS):
        before_M, class_M = class_M, clusters.organize(directions_ME @ means_CE.T, counts_M, bounds, rng)
        if np.array_equal(before_M, class_M):
            break
        means_CE = _unit(sums(directions_ME, class_M, bounds.clusters))
    return class_M


def sums(values_ME: NDArray[np.floating], class_M: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """(C, E) sums of the members' rows by class."""
    total_CE = np.zeros((classes, values_ME.shape[1]))
    np.add.at(total_CE, class_M, values_ME)
    return total_CE


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of length 1; a row of zeros, of a word without a vector, stays one."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)
