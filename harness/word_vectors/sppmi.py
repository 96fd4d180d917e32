"""Word vectors from the shifted positive PMI matrix, by truncated singular value decomposition.

    M = max(PMI - log k, 0) ~ U S V^T,   word vectors U S^p with p in 0, 1/2, 1

Skip-gram with k negative samples factorises PMI - log k implicitly; this factorises it explicitly (Levy and Goldberg
2014, "Neural Word Embedding as Implicit Matrix Factorization").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds

from vocabench.harness.word_vectors import pmi
from vocabench.impls.errors import BadInput

POWERS = (0.0, 0.5, 1.0)


def vectors(
    ids_T: NDArray[np.integer],
    vocab: int,
    dim: int,
    *,
    window: int,
    negatives: float,
    power: float,
    seed: int,
    document_T: NDArray[np.integer] | None = None,
) -> NDArray[np.float64]:
    """Return word vectors (V, D) of a text.

    Args:
        ids_T: The text.
        vocab: Number of words.
        dim: Width of the vectors, below the number of words.
        window: Words on either side.
        negatives: Number k of negative samples, whose logarithm is subtracted from PMI.
        power: Exponent p of the singular values, one of `POWERS`.
        seed: Seed of the vector from which the decomposition starts.
        document_T: The document of each position, if a window must not reach into another document.

    Raises:
        BadInput: An argument is out of range, or no pair has a PMI above log k.
    """
    pairs = pmi.pair_counts(ids_T, vocab, window, document_T)
    return factorise(shifted_positive_pmi(pairs, negatives), dim, power, seed)


def shifted_positive_pmi(pairs: sparse.csr_array, negatives: float) -> sparse.csr_array:
    """Return max(PMI - log k, 0) as a sparse array (V, V), which stores positive entries only.

    The arguments are those of `pmi.shifted_pmi`.
    """
    shifted = pmi.shifted_pmi(pairs, negatives)
    shifted.data = np.maximum(shifted.data, 0.0)
    positive = shifted.tocsr()
    positive.eliminate_zeros()
    return positive


def factorise(matrix: sparse.csr_array, dim: int, power: float, seed: int) -> NDArray[np.float64]:
    """Return U S^p of the truncated singular value decomposition, (V, D), by decreasing singular value.

    The sign of each column makes its entry of largest magnitude positive. Columns beyond the rank are zero. Columns
    with equal singular values are determined up to a rotation.

    Raises:
        BadInput: `dim` or `power` is out of range, or the matrix is zero.
    """
    vocab = len(matrix.indptr) - 1
    if not 1 <= dim < vocab:
        raise BadInput(f"dim={dim}: allowed: a whole number from 1 to {vocab - 1}, less than the {vocab} words")
    if power not in POWERS:
        raise BadInput(f"power={power}: allowed: {', '.join(map(str, POWERS))}")
    if not matrix.nnz:
        raise BadInput("no pair has a PMI above log k: allowed: more text, a larger window or fewer negatives")
    start_V = np.random.default_rng([seed, 12]).standard_normal(vocab)
    decomposed: Any = svds(matrix, k=dim, v0=start_V)  # by rising singular value
    left_VD, singular_D = decomposed[0][:, ::-1], decomposed[1][::-1]
    # ARPACK returns noise for singular values of zero, which the power 0 would enlarge.
    is_real_D = singular_D > singular_D[0] * vocab * np.finfo(np.float64).eps
    scale_D = np.where(is_real_D, np.where(is_real_D, singular_D, 1.0) ** power, 0.0)
    largest_D = np.take_along_axis(left_VD, np.abs(left_VD).argmax(axis=0)[None, :], axis=0)[0]
    return left_VD * (np.where(largest_D < 0, -1.0, 1.0) * scale_D)
