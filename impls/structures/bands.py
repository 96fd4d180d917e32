"""Bands of words by frequency for differentiated softmax (Chen, Grangier, Auli 2016), and the widths of the bands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput


def bands_of_words(counts_V: NDArray[np.int64], bands: int) -> NDArray[np.int64]:
    """Return the band (V,) of each word, 0 for the most frequent words. No band is empty.

    Words are sorted by descending count, ties by lower id, and cut where the cumulative counts are closest to equal
    shares: a word belongs to the share that contains the middle of its own count. A band that would be empty gets one
    word from its neighbour. A vocabulary of fewer words than `bands` has one band per word.
    """
    vocab = len(counts_V)
    bands = min(bands, vocab)
    order = np.argsort(-counts_V, kind="stable")
    count_V = counts_V[order].astype(np.float64)
    middle_V = count_V.cumsum() - count_V / 2
    band_ids = np.arange(bands)
    first = np.searchsorted(middle_V, band_ids * (count_V.sum() / bands))
    first = np.maximum.accumulate(first - band_ids) + band_ids  # leave at least one word for each band before
    first = np.minimum(first, vocab - bands + band_ids)  # and for this band and each band after
    band_V = np.empty(vocab, dtype=np.int64)
    band_V[order] = np.searchsorted(first, np.arange(vocab), side="right") - 1
    return band_V


def words_by_band(band_V: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the words (V,) sorted by band and then by id, which is the order of logits computed band by band."""
    return np.argsort(band_V, kind="stable")


def places(band_V: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position (V,) of each word in `words_by_band`."""
    place_V = np.empty_like(band_V)
    place_V[words_by_band(band_V)] = np.arange(len(band_V))
    return place_V


def slice_widths(dim: int, bands: int, div_value: float) -> list[int]:
    """Return the widths of disjoint slices of a vector, which sum to `dim`.

    Each band has one dimension. The other dim - bands dimensions are distributed in shares that fall by the factor
    `div_value` from band to band, rounded down. The remainder goes to band 0.

    Raises:
        BadInput: There are more bands than dimensions.
    """
    if bands > dim:
        raise BadInput(f"bands={bands} share a hidden vector of dim={dim}: allowed: bands from 1 to {dim}")
    share = [div_value**-band for band in range(bands)]
    rest = [1 + int((dim - bands) * part / sum(share)) for part in share[1:]]
    return [dim - sum(rest), *rest]


def projected_widths(dim: int, bands: int, div_value: float) -> list[int]:
    """Return the widths of projections of a vector: floor(dim / div_value^b) for band b, and at least 1."""
    return [max(1, int(dim / div_value**band)) for band in range(bands)]
