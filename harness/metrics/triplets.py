"""Document vectors scored by triplets: a document, a related one with the same label, and one with another label.

A triplet is right if the vector of the document has a larger cosine with that of the related document (Dai, Olah, Le
and Corrado 2014, "Document Embedding with Paragraph Vectors").

Shape letters: N documents, R triplets, E width of the vectors, K documents in triplets, L labels, S samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.measure.stats import Interval
from vocabench.harness.metrics import bootstrap
from vocabench.impls.errors import BadInput

_SEED = 14  # triplets are part of the task, and the same for all methods and seeds
_AT_ONCE = 1 << 16  # triplets per block of products


@dataclass(frozen=True)
class Triplets:
    """Triplets of documents.

    Attributes:
        ids_R3: (R, 3) document, related document, unrelated document.
        documents: Number of documents that triplets are drawn from.
        labels: Number of labels with two documents or more, which these documents have.
        ignored: Number of labels with a single document, which is in no triplet.
    """

    ids_R3: NDArray[np.int64]
    documents: int
    labels: int
    ignored: int

    def __len__(self) -> int:
        return len(self.ids_R3)


def draw(labels_N: NDArray[np.integer], count: int) -> Triplets:
    """Draw triplets: a document, then another one of its label, then one of the other labels, each uniformly.

    Raises:
        BadInput: Fewer than two labels have two documents.
    """
    _, label_N, size_L = np.unique(labels_N, return_inverse=True, return_counts=True)
    kept_N = np.flatnonzero(size_L[label_N] > 1)
    labels = int((size_L > 1).sum())
    if labels < 2:
        raise BadInput(f"documents to score: {labels} labels with two documents or more: allowed: from 2 such labels")
    order_K = kept_N[np.argsort(label_N[kept_N], kind="stable")]  # documents of a label are neighbours
    _, start_L, size_L = np.unique(label_N[order_K], return_index=True, return_counts=True)
    label_K = np.repeat(np.arange(labels), size_L)
    rng = np.random.default_rng(_SEED)
    place_R = rng.integers(0, len(order_K), count)
    start_R, size_R = start_L[label_K[place_R]], size_L[label_K[place_R]]
    # A place among the others of the label, counted from the one after the document, around the end.
    related_R = start_R + (place_R - start_R + rng.integers(1, size_R)) % size_R
    unrelated_R = (start_R + size_R + rng.integers(0, len(order_K) - size_R)) % len(order_K)
    ids_R3 = np.stack([order_K[place_R], order_K[related_R], order_K[unrelated_R]], axis=1)
    return Triplets(ids_R3, len(order_K), labels, len(np.unique(labels_N)) - labels)


def accuracy(vectors_NE: NDArray[np.floating], triplets: Triplets) -> Interval:
    """Return the share of right triplets with its 95 % interval.

    Equal cosines count one half; a vector of zero has the cosine 0. The interval is a bootstrap over the documents that
    begin the triplets, because the triplets of a document are not independent.

    Raises:
        BadInput: A vector is not finite.
    """
    if not np.isfinite(vectors_NE).all():
        raise BadInput("document vectors contain NaN or infinity: allowed: finite numbers")
    vectors_NE = np.asarray(vectors_NE, dtype=np.float64)
    length_N1 = np.linalg.norm(vectors_NE, axis=1, keepdims=True)
    unit_NE = vectors_NE / np.where(length_N1 > 0, length_N1, 1.0)
    right_R = np.empty(len(triplets))
    for start in range(0, len(triplets), _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        document_B, related_B, unrelated_B = triplets.ids_R3[here].T
        related_B, unrelated_B = (
            np.einsum("be,be->b", unit_NE[document_B], unit_NE[other_B]) for other_B in (related_B, unrelated_B)
        )
        right_R[here] = (related_B > unrelated_B) + 0.5 * (related_B == unrelated_B)
    _, document_R = np.unique(triplets.ids_R3[:, 0], return_inverse=True)
    sums_S, sizes_S = (np.bincount(document_R, weight_R).astype(np.float64) for weight_R in (right_R, None))
    return bootstrap.intervals(sums_S[:, None], sizes_S=sizes_S)[0]
