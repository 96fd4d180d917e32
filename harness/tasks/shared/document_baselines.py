"""Document vectors without an output layer: averages of word vectors, and the topics of latent Dirichlet allocation.

Everything is learned from the training documents; the vectors are those of the test documents.

Shape letters: N documents, V words, E width of a document's vector.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from vocabench.harness.datasets.documents.encoded_documents import EncodedDocuments, Labelled
from vocabench.harness.datasets.shared import packages
from vocabench.harness.run.settings import Setting
from vocabench.harness.word_vectors import sppmi
from vocabench.impls.options import Choice, Number

METHODS = ("average", "idf_average", "lda")

SETTINGS: dict[str, Setting] = {
    "shift": Number(5.0, 1e-9, 1e9, "k of the word vectors of averages, whose logarithm is subtracted from PMI"),
    "power": Choice(0.5, sppmi.POWERS, "exponent of the singular values in the word vectors of averages"),
    "topics": Number(100, 2, 10**6, "number of topics of latent Dirichlet allocation"),
    "topic_epochs": Number(3, 1, 10**6, "passes of latent Dirichlet allocation over the training documents"),
}


def vectors(
    method: str, data: EncodedDocuments, *, dim: int, settings: Mapping[str, Any], seed: int
) -> NDArray[np.float64]:
    """Return the vectors of the test documents, (N, E).

    Args:
        method: One of `METHODS`.
        data: The documents.
        dim: Width of word vectors.
        settings: Those of the task, with `window` and `SETTINGS`.
        seed: Seed of the decomposition or the topics.

    Raises:
        Unsupported: A package that the method needs is not installed.
    """
    if method == "lda":
        packages.require("method lda", {"sklearn": "scikit-learn"})
        return _topics(data, settings, seed)
    weight_V = np.ones(len(data.words))
    if method == "idf_average":
        weight_V = _inverse_frequency(word_counts(data.splits["train"], len(data.words)))
    train = data.splits["train"]
    word_VD = sppmi.vectors(
        train.texts.ids_T,
        len(data.words),
        dim,
        window=settings["window"],
        negatives=settings["shift"],
        power=settings["power"],
        seed=seed,
        document_T=train.document_T,
    )
    test = data.splits["test"]
    return word_counts(test, len(data.words)) @ (weight_V[:, None] * word_VD) / test.texts.lengths_P[:, None]


def word_counts(documents: Labelled, vocab: int) -> sparse.csr_array:
    """Return how often each word occurs in each document, (N, V)."""
    ids_T = np.asarray(documents.texts.ids_T, dtype=np.int64)
    places = (documents.document_T, ids_T)
    return sparse.coo_array((np.ones(len(ids_T)), places), shape=(len(documents), vocab)).tocsr()


def _inverse_frequency(counts_NV: sparse.csr_array) -> NDArray[np.float64]:
    """Return log(N / number of documents with the word), (V,); 0 for a word that is in none."""
    documents = len(counts_NV.indptr) - 1
    containing_V = np.bincount(counts_NV.indices, minlength=int(np.shape(counts_NV.sum(axis=0))[0]))
    return np.log(documents / np.where(containing_V > 0, containing_V, documents))


def _topics(data: EncodedDocuments, settings: Mapping[str, Any], seed: int) -> NDArray[np.float64]:
    """Return the square roots of the topic proportions.

    They have length 1, and the Hellinger distance of two documents is sqrt(1 - cosine): the documents that are nearest
    by Hellinger distance have the largest cosine.
    """
    # Imported here, because scikit-learn need not be installed.
    lda: Callable[..., Any] = importlib.import_module("sklearn.decomposition").LatentDirichletAllocation
    train_NV, test_NV = (word_counts(data.splits[split], len(data.words)) for split in ("train", "test"))
    model = lda(
        n_components=settings["topics"],
        learning_method="online",
        max_iter=settings["topic_epochs"],
        random_state=seed % 2**32,
    )
    model.fit(train_NV)
    return np.sqrt(model.transform(test_NV))
