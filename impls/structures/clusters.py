"""Clusters of words for two-level layers: limits, algorithm 1 of SOHSM (Shen et al. 2017), and slots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput

# Scores per block: few enough for the cache of the allocator, enough for NumPy to be efficient.
_BLOCK_FLOATS = 4_000_000


@dataclass(frozen=True)
class Limits:
    """Number of clusters, and limits of each of them.

    Attributes:
        clusters: Number of clusters.
        words: Largest number of words in a cluster.
        frequency: Share of all tokens from which on a cluster takes no further word.
    """

    clusters: int
    words: int
    frequency: float


def limits(vocab: int, *, gamma: float, budget: float, clusters: int = 0) -> Limits:
    """Return limits for C = ceil(sqrt V) clusters of at most floor(gamma sqrt V) words each.

    With `clusters`, there are that many clusters of at most floor(gamma V / clusters) words each.

    Raises:
        BadInput: The clusters have no room for the vocabulary.
    """
    count = clusters or math.ceil(math.sqrt(vocab))
    words = math.floor(gamma * (vocab / clusters if clusters else math.sqrt(vocab)))
    if not 1 <= count <= vocab or count * words < vocab:
        raise BadInput(
            f"{count} clusters of at most {words} words (gamma={gamma}) have no room for {vocab} words: "
            "allowed: a larger gamma, or another number of clusters"
        )
    return Limits(count, words, budget)


def organize(
    scores_VC: NDArray[np.floating], counts_V: NDArray[np.int64], bounds: Limits, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Assign words to clusters (V,) by algorithm 1: each word, by descending count, goes to its best cluster with room.

    A cluster has room while its size is below the limit and its share of the tokens is below the budget, both before
    the word is added. If the budget has closed all clusters, as in a small vocabulary, only the size counts. Ties are
    broken at random; otherwise unseen words would accumulate in the first clusters. As soon as only as many words are
    left as there are empty clusters, each of these gets one, because the probability of an empty cluster would be lost.

    Words are processed in blocks. The best clusters of a block are found at once. They are recomputed for the rest of
    the block only when a cluster closes, which happens at most once per cluster.
    """
    vocab, clusters = scores_VC.shape
    order = np.argsort(-counts_V, kind="stable")
    share_V = counts_V / counts_V.sum()
    cluster_V = np.empty(vocab, dtype=np.int64)
    size_C = np.zeros(clusters, dtype=np.int64)
    frequency_C = np.zeros(clusters)
    open_C = np.ones(clusters, dtype=bool)
    by_size_only = False
    empty = clusters

    block = max(1, _BLOCK_FLOATS // clusters)
    start = 0
    while start < vocab:
        words = order[start : start + block]
        choice = _best(scores_VC[words], open_C, rng)
        taken = 0
        for word, cluster in zip(words.tolist(), choice.tolist(), strict=True):
            cluster_V[word] = cluster
            empty -= int(size_C[cluster] == 0)
            size_C[cluster] += 1
            frequency_C[cluster] += share_V[word]
            taken += 1
            if empty and vocab - start - taken <= empty:
                open_C = size_C == 0
                break
            full = size_C[cluster] >= bounds.words
            if full or (not by_size_only and frequency_C[cluster] >= bounds.frequency):
                open_C[cluster] = False
                break
        start += taken
        # After a cluster closes, most of a block is scored again. Shrink blocks while clusters close fast, and grow
        # them slowly.
        block = max(64, 2 * taken) if taken < len(words) else min(2 * block, max(64, _BLOCK_FLOATS // clusters))
        if start < vocab and not open_C.any():
            by_size_only = True
            open_C = size_C < bounds.words
    return cluster_V


def _best(scores_RC: NDArray[np.floating], open_C: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the open cluster with the highest score in each row, with ties broken at random."""
    candidates = np.flatnonzero(open_C)
    scores = scores_RC[:, candidates].astype(np.float64 if scores_RC.dtype == np.float64 else np.float32)
    is_best = scores == scores.max(axis=1, keepdims=True)
    best = is_best.argmax(axis=1)
    tied = np.flatnonzero(is_best.sum(axis=1) > 1)
    if len(tied):
        best[tied] = np.where(is_best[tied], rng.random((len(tied), len(candidates))), -1.0).argmax(axis=1)
    return candidates[best]


def random_clusters(counts_V: NDArray[np.int64], bounds: Limits, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw random clusters (V,) within the limits, none of them empty, from which self-organization starts."""
    vocab = len(counts_V)
    share_V = counts_V / counts_V.sum()
    # Drawing one open cluster per word needs no (V, C) scores.
    size_C = np.zeros(bounds.clusters, dtype=np.int64)
    frequency_C = np.zeros(bounds.clusters)
    open_clusters = list(range(bounds.clusters))
    by_size_only = False
    empty = bounds.clusters
    cluster_V = np.empty(vocab, dtype=np.int64)
    draws = rng.random(vocab)
    for taken, word in enumerate(np.argsort(-counts_V, kind="stable").tolist()):
        if empty and vocab - taken == empty:
            open_clusters = np.flatnonzero(size_C == 0).tolist()
        elif not open_clusters:
            by_size_only = True
            open_clusters = np.flatnonzero(size_C < bounds.words).tolist()
        position = int(draws[word] * len(open_clusters))
        cluster = open_clusters[position]
        cluster_V[word] = cluster
        empty -= int(size_C[cluster] == 0)
        size_C[cluster] += 1
        frequency_C[cluster] += share_V[word]
        if size_C[cluster] >= bounds.words or (not by_size_only and frequency_C[cluster] >= bounds.frequency):
            open_clusters[position] = open_clusters[-1]
            open_clusters.pop()
    return cluster_V


def moves_along(name: str, shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Return whether an array of an optimizer's state has an entry for each entry of a parameter, and moves with it.

    Args:
        name: The parameter that a message names.
        shape: Shape of the array.
        whole: Shape of the parameter.

    Raises:
        BadInput: The array has another shape and is not a single number, like the factors of Adafactor. Their rows and
            columns are sums over words, which cannot be taken apart.
    """
    if tuple(shape) == tuple(whole):
        return True
    if math.prod(shape) <= 1:
        return False
    raise BadInput(
        f"reorganize: the optimizer's state of {name} has shape {tuple(shape)}: allowed: {tuple(whole)} or one number, "
        "as that of Adagrad, Adam or SGD has"
    )


def slots(cluster_V: NDArray[np.int64], clusters: int) -> NDArray[np.int64]:
    """Return the position (V,) of each word in its cluster, in vocabulary order, which is its slot in a (C, S) slab."""
    order = np.argsort(cluster_V, kind="stable")
    sizes = np.bincount(cluster_V, minlength=clusters)
    first = np.cumsum(sizes) - sizes
    slot_V = np.empty_like(cluster_V)
    slot_V[order] = np.arange(len(cluster_V)) - first[cluster_V[order]]
    return slot_V


def slab_width(words: int) -> int:
    """Return the slots S for clusters of up to `words` words, since products are faster on rows aligned to 16 bytes."""
    return -(-words // 8) * 8


def words_by_slot(
    cluster_V: NDArray[np.int64], slot_V: NDArray[np.int64], clusters: int, width: int, *, empty: int
) -> NDArray[np.int64]:
    """Return the word (C, S) in each slot, or `empty` for slots without a word."""
    words_CS = np.full((clusters, width), empty, dtype=np.int64)
    words_CS[cluster_V, slot_V] = np.arange(len(cluster_V))
    return words_CS


def check_partition(cluster_V: NDArray, vocab: int, clusters: int | None = None) -> NDArray[np.int64]:
    """Return `cluster_V` as int64 after checking that it assigns each of `vocab` words to one of `clusters` clusters.

    Without `clusters`, their number follows from the highest one, and none may be empty, because the probability of an
    empty cluster would be lost.

    Raises:
        BadInput: The assignment is invalid.
    """
    array = np.asarray(cluster_V)
    if array.shape != (vocab,) or array.dtype.kind not in "iu":
        raise BadInput(f"cluster has shape {array.shape} and dtype {array.dtype}: allowed: ({vocab},) whole numbers")
    count = max(1, int(array.max()) + 1) if clusters is None else clusters
    if ((array < 0) | (array >= count)).any():
        word = int(np.flatnonzero((array < 0) | (array >= count))[0])
        raise BadInput(f"cluster[{word}]={array[word]}: allowed: from 0 to {count - 1}")
    if clusters is None and count > vocab:
        raise BadInput(
            f"cluster has the number {count - 1}: allowed: from 0 to {vocab - 1}, as {vocab} words fill no more"
        )
    sizes_C = np.bincount(array, minlength=count)
    if clusters is None and not sizes_C.all():
        raise BadInput(f"cluster {int(sizes_C.argmin())} has no word: allowed: every number up to the highest")
    return array.astype(np.int64)
