"""Whether skip-gram with negative sampling factorises PMI - log k.

With vectors as wide as the vocabulary, the optimum of negative sampling is u.v = PMI - log k for each pair (Levy and
Goldberg 2014). Narrower vectors can only approximate it, and need not do so in the sense of least squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from vocabench.harness.word_vectors import pmi
from vocabench.impls.errors import BadInput

_AT_ONCE = 1 << 16  # pairs per block of products
_FEWEST_PAIRS = 3


@dataclass(frozen=True)
class Correlation:
    """How well products of vectors follow PMI - log k.

    Attributes:
        value: Pearson's correlation, in [-1, 1].
        pairs: Number of distinct pairs that it is taken over.
    """

    value: float
    pairs: int


def correlation(
    input_VD: NDArray[np.floating], output_VD: NDArray[np.floating], pairs: sparse.csr_array, negatives: float
) -> Correlation:
    """Return the correlation of u.v with PMI - log k over the pairs that occur in the text, each of them once.

    Args:
        input_VD: Vectors v of the words.
        output_VD: Vectors u of the context words.
        pairs: Counts (V, V) of words and contexts, as `pmi.pair_counts` returns them.
        negatives: Number k of negative samples. It shifts all values, so the correlation does not depend on it.

    Raises:
        BadInput: The shapes differ, a vector is not finite, there are fewer than three pairs, or all pairs have the
            same PMI or the same product.
    """
    vocab = len(pairs.indptr) - 1
    for name, vectors_VD in (("input", input_VD), ("output", output_VD)):
        if vectors_VD.ndim != 2 or vectors_VD.shape != (vocab, input_VD.shape[1]):
            raise BadInput(f"{name} vectors of shape {vectors_VD.shape}: allowed: ({vocab}, D), the same for both")
        if not np.isfinite(vectors_VD).all():
            raise BadInput(f"{name} vectors contain NaN or infinity: allowed: finite numbers")
    shifted = pmi.shifted_pmi(pairs, negatives)
    if shifted.nnz < _FEWEST_PAIRS:
        raise BadInput(f"{shifted.nnz} pairs of words: allowed: from {_FEWEST_PAIRS}")
    word_P, context_P = shifted.coords
    product_P = np.empty(shifted.nnz)
    for start in range(0, shifted.nnz, _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        left_BD, right_BD = input_VD[word_P[here]], output_VD[context_P[here]]
        product_P[here] = np.einsum("bd,bd->b", left_BD, right_BD, dtype=np.float64)
    for name, values_P in (("PMI", shifted.data), ("product of vectors", product_P)):
        if np.ptp(values_P) <= 1e-12 * np.abs(values_P).max():
            raise BadInput(f"all {shifted.nnz:,} pairs have the same {name}: allowed: values that vary")
    return Correlation(float(np.corrcoef(product_P, shifted.data)[0, 1]), shifted.nnz)
