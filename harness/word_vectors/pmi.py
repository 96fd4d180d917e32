"""Pairs of words within a window, and their pointwise mutual information.

    PMI(w, c) = log #(w, c) n / (#(w) #(c)),   n = sum of #(w, c) over all pairs

The counts are those of skip-gram: each ordered pair of positions within the window counts once. #(w) is the number of
pairs whose word is w, and #(c) that of the pairs whose context is c (Levy and Goldberg 2014).

Shape letters in addition to those of `impls/spec.py`: T positions of a text, P distinct pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from vocabench.impls.errors import BadInput


def pair_counts(
    ids_T: NDArray[np.integer], vocab: int, window: int, document_T: NDArray[np.integer] | None = None
) -> sparse.csr_array:
    """Count the pairs of a word and a context word at most `window` positions away, on both sides.

    Args:
        ids_T: The text.
        vocab: Number of words.
        window: Words on either side.
        document_T: The document of each position, if a window must not reach into another document.

    Returns:
        Counts (V, V), of which all stored entries are positive.

    Raises:
        BadInput: `window` is below 1, or a word id is outside the vocabulary.
    """
    if window < 1:
        raise BadInput(f"window={window}: allowed: a whole number from 1")
    ids_T = np.asarray(ids_T, dtype=np.int64)
    if len(ids_T) and not 0 <= ids_T.min() <= ids_T.max() < vocab:
        raise BadInput(f"word ids from {ids_T.min()} to {ids_T.max()}: allowed: from 0 to {vocab - 1}")
    total = sparse.csr_array((vocab, vocab), dtype=np.int64)
    for distance in range(1, min(window, len(ids_T) - 1) + 1):
        first, second = ids_T[:-distance], ids_T[distance:]
        if document_T is not None:
            same = document_T[:-distance] == document_T[distance:]
            first, second = first[same], second[same]
        ones = np.ones(len(first), dtype=np.int64)
        one_way = sparse.coo_array((ones, (first, second)), shape=(vocab, vocab)).tocsr()
        total = total + one_way + one_way.T
    return sparse.csr_array(total)


def shifted_pmi(pairs: sparse.csr_array, negatives: float) -> sparse.coo_array:
    """Return PMI - log k of the pairs that occur, with k = `negatives`.

    Args:
        pairs: Counts (V, V) of words and contexts.
        negatives: Number of negative samples per pair.

    Returns:
        An array (V, V) with the stored entries of `pairs`, some of which may be zero.

    Raises:
        BadInput: `negatives` is not positive.
    """
    if not 0 < negatives < np.inf:
        raise BadInput(f"negatives={negatives}: allowed: a finite number above 0")
    counts = pairs.tocoo()
    word_P, context_P = counts.coords
    words_V, contexts_V = pairs.sum(axis=1), pairs.sum(axis=0)
    pmi_P = np.log(counts.data) + np.log(pairs.sum()) - np.log(words_V[word_P]) - np.log(contexts_V[context_P])
    return sparse.coo_array((pmi_P - np.log(negatives), (word_P, context_P)), shape=pairs.shape)
