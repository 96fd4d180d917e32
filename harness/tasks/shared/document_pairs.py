"""Batches of training pairs from documents: a document and one of its words, or a word and a word near it.

Shape letters: T positions of a text, N positions of a batch, J neighbours of a position.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vocabench.harness.datasets.documents.encoded_documents import Labelled
from vocabench.harness.tasks.shared.bags import Pairs


def of_documents(documents: Labelled, batch: int, rng: np.random.Generator, first: int = 0) -> Iterator[Pairs]:
    """Yield each word of the text once, in random order, as the target of its document.

    Args:
        documents: The documents.
        batch: Words per batch. Those that do not fill a batch are left out.
        rng: Decides the order.
        first: Input vector of the first document; those of the others follow.
    """
    ids_T, document_T = documents.texts.ids_T, documents.document_T
    order_T = rng.permutation(len(ids_T))
    for start in range(0, len(order_T) - batch + 1, batch):
        at_N = order_T[start : start + batch]
        yield (first + document_T[at_N])[:, None].astype(np.int32), ids_T[at_N].astype(np.int32)


def of_neighbours(documents: Labelled, window: int, batch: int, rng: np.random.Generator) -> Iterator[Pairs]:
    """Yield pairs of skip-gram without end: a word at a random position, and as the target one of its neighbours.

    A neighbour at a distance d up to `window` is drawn in proportion to window - d + 1, which is the share of windows
    that contain it if their size is uniform between 1 and `window`, as in word2vec. Neighbours are in the same
    document.
    """
    ids_T, starts_P = documents.texts.ids_T, documents.texts.starts_P
    document_T = documents.document_T
    pairable_T = np.flatnonzero(documents.texts.lengths_P[document_T] > 1)
    offset_J = np.concatenate([np.arange(-window, 0), np.arange(1, window + 1)])
    weight_J = window + 1.0 - np.abs(offset_J)
    while len(pairable_T):
        at_N = rng.choice(pairable_T, batch)
        place_NJ = at_N[:, None] + offset_J
        begin_N1, end_N1 = (starts_P[document_T[at_N] + side][:, None] for side in (0, 1))
        share_NJ = (weight_J * ((place_NJ >= begin_N1) & (place_NJ < end_N1))).cumsum(axis=1)
        chosen_N1 = (share_NJ <= rng.random((batch, 1)) * share_NJ[:, -1:]).sum(axis=1, keepdims=True)
        target_N = np.take_along_axis(place_NJ, chosen_N1, axis=1)[:, 0]
        yield ids_T[at_N][:, None].astype(np.int32), ids_T[target_N].astype(np.int32)
