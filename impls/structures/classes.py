"""Classes of words for class-based hierarchical softmax, by count, at random or by similarity; and classes of classes.

- By count (Goodman 2001; Mikolov et al. 2011): words are sorted by descending count, and their cumulative share of all
  counts is cut into equal parts. With square roots of the counts, frequent words weigh less and the sizes of the
  classes are more even.
- By similarity (Le et al. 2011; Chen et al. 2016): spherical k-means on word vectors. Here the limits on size and
  frequency of SOHSM's algorithm 1 apply, which bound the cost of a class.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.structures import bigrams, clusters

BINS = ("count", "sqrt_count", "random", "similarity", bigrams.NAME)

# Limits of classes by similarity, as for the clusters of SOHSM.
_GAMMA, _BUDGET = 1.5, 0.1
_ROUNDS = 10  # iterations of k-means


def sizes(vocab: int, levels: int) -> list[int]:
    """Return the number of classes on each level, from the top: V^(1/2), or V^(1/3) and V^(2/3), rounded up."""
    return [min(vocab, math.ceil(vocab ** (level / levels) - 1e-9)) for level in range(1, levels)]


def by_share(weights_M: NDArray, classes: int) -> NDArray[np.int64]:
    """Assign each member, in order of descending weight, to class floor(C x share of the weight before it).

    Classes that stay empty because one member spans several parts are removed.
    """
    order = np.argsort(-weights_M, kind="stable")
    weights = weights_M[order].astype(np.float64)
    if not weights.any():
        weights[:] = 1.0
    before = (np.cumsum(weights) - weights) / weights.sum()
    class_M = np.empty(len(order), dtype=np.int64)
    class_M[order] = np.minimum((classes * before).astype(np.int64), classes - 1)
    return np.unique(class_M, return_inverse=True)[1].astype(np.int64)


def at_random(members: int, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw random classes (M,) whose sizes differ by at most one."""
    class_M = np.empty(members, dtype=np.int64)
    class_M[rng.permutation(members)] = np.arange(members) % classes
    return class_M


def limits(members: int, classes: int) -> clusters.Limits:
    """Return the limits of classes by similarity."""
    budget = max(_BUDGET, _GAMMA / classes)  # a small number of classes must each hold more
    return clusters.limits(members, gamma=_GAMMA, budget=min(budget, 1.0), clusters=classes)


def by_similarity(
    vectors_ME: NDArray[np.floating], counts_M: NDArray[np.int64], bounds: clusters.Limits, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Assign members to classes (M,) by spherical k-means with limits.

    In each iteration, the members, by descending count, go to the class with the nearest mean direction that has room
    (`clusters.organize`). Then the means are recomputed. At most ten iterations run, until no member moves.
    """
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
    """Return the sum (C, E) of the rows of the members of each class."""
    total_CE = np.zeros((classes, values_ME.shape[1]))
    np.add.at(total_CE, class_M, values_ME)
    return total_CE


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale rows to length 1. Rows of zeros, which belong to words without a vector, stay zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)
