"""Pairs of adjacent words in a text: their counts, and word vectors derived from them.

Words with the same neighbours on the left and right are interchangeable, and a class-based softmax profits from having
them in one class. Finding them needs no model: one pass over the text takes a few seconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from vocabench.impls.errors import BadInput

NAME = "bigram"  # option value that requires pairs

_NEIGHBOURS = 1000  # most frequent words used as neighbours, on either side; rarer ones are not informative
_WIDTH = 64


def count_pairs(ids_T: NDArray[np.integer], vocab: int) -> NDArray[np.int64]:
    """Return rows (P, 3) of a word, the word after it, and the count of the pair in a text."""
    pair_P, count_P = np.unique(ids_T[:-1].astype(np.int64) * vocab + ids_T[1:], return_counts=True)
    return np.stack([*np.divmod(pair_P, vocab), count_P], axis=1)


def check_pairs(pairs_P3: NDArray, vocab: int) -> NDArray[np.int64]:
    """Return `pairs_P3` as int64 after checking that words are in the vocabulary and counts above 0."""
    if pairs_P3.ndim != 2 or pairs_P3.shape[1] != 3 or not len(pairs_P3):
        raise BadInput(f"option pairs has shape {pairs_P3.shape}: allowed: (P, 3) with P from 1")
    wrong_P = ((pairs_P3 < [0, 0, 1]) | (pairs_P3 % 1 != 0)).any(axis=1) | (pairs_P3[:, :2] >= vocab).any(axis=1)
    if wrong_P.any():
        first = int(wrong_P.argmax())
        raise BadInput(
            f"option pairs[{first}]={pairs_P3[first].tolist()}: allowed: word before and word, whole numbers from 0 to "
            f"{vocab - 1}, and a count from 1"
        )
    if pairs_P3[:, 2].sum(dtype=np.float64) >= 2.0**62:
        raise BadInput("option pairs: counts sum beyond 2**62: allowed: sums that fit 64-bit integers")
    return pairs_P3.astype(np.int64)


def vectors(pairs_P3: NDArray[np.int64], counts_V: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return word vectors (V, E) that point in similar directions for words with the same neighbours.

    A word is first described by its positive pointwise mutual information with each of the most frequent words as left
    and as right neighbour (Bullinaria and Levy 2007, doi 10.3758/BF03193020). The vectors are the main directions of
    these columns, scaled by the square roots of the singular values (Levy, Goldberg and Dagan 2015, equation 8). Words
    without such neighbours have zero vectors.
    """
    vocab = len(counts_V)
    frequent_K = np.argsort(-counts_V, kind="stable")[:_NEIGHBOURS]
    column_V = np.full(vocab, -1)
    column_V[frequent_K] = np.arange(len(frequent_K))
    before_P, word_P, count_P = pairs_P3.T
    shape = vocab, len(frequent_K)
    sides = (
        _information(word_P, column_V[before_P], count_P, shape),
        _information(before_P, column_V[word_P], count_P, shape),
    )
    information_VK = sparse.hstack(sides, format="csr")
    squares, directions = np.linalg.eigh((information_VK.T @ information_VK).toarray())  # ascending
    kept = squares > 1e-9 * max(squares[-1], 1e-300)
    kept[:-_WIDTH] = False
    return information_VK @ (directions[:, kept] * squares[kept] ** -0.25)


def _information(
    row_P: NDArray[np.int64], column_P: NDArray[np.int64], count_P: NDArray[np.int64], shape: tuple[int, int]
) -> sparse.csr_array:
    """Return the positive pointwise mutual information of pairs.

    This is the logarithm of the count of a pair over the count expected for independent words. It is 0 if it would be
    negative, or if the pair has no column (-1).
    """
    known_P = column_P >= 0
    seen = sparse.coo_array((count_P[known_P].astype(np.float64), (row_P[known_P], column_P[known_P])), shape=shape)
    seen.sum_duplicates()
    expected_P = seen.sum(axis=1)[seen.row] * seen.sum(axis=0)[seen.col] / seen.sum()
    information = np.maximum(np.log(seen.data / expected_P), 0.0)
    return sparse.csr_array((information, (seen.row, seen.col)), shape=shape)
