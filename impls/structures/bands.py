"""Bands of words by frequency for the differentiated softmax (Chen, Grangier, Auli 2016), and how wide each band is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput


def bands_of_words(counts_V: NDArray[np.int64], bands: int) -> NDArray[np.int64]:
    """(V,) the band of each word, 0 for the most frequent words; at most `bands` of them, none empty.

    Words by falling count, ties by lower id, are cut where the summed counts come nearest to equal shares: a word
    belongs to the share in which the middle of its own count falls. A band that would stay empty gets one word of its
    neighbour, and a vocabulary of fewer words than `bands` has a band for each word.
    """
    vocab = len(counts_V)
    bands = min(bands, vocab)
    order = np.argsort(-counts_V, kind="stable")
    count_V = counts_V[order].astype(np.float64)
    middle_V = count_V.cumsum() - count_V / 2
    each = np.arange(bands)
    first = np.searchsorted(middle_V, each * (count_V.sum() / bands))
    first = np.maximum.accumulate(first - each) + each  # a word at least for the bands before
    first = np.minimum(first, vocab - bands + each)  # and for this band and those after
    band_V = np.empty(vocab, dtype=np.int64)
    band_V[order] = np.searchsorted(first, np.arange(vocab), side="right") - 1
    return band_V


def words_by_band(band_V: NDArray[np.int64]) -> NDArray[np.int64]:
    """(V,) the words band after band, by rising id within a band: the columns of logits made band by band."""
    return np.argsort(band_V, kind="stable")


def places(band_V: NDArray[np.int64]) -> NDArray[np.int64]:
    """(V,) the column of each word among those of `words_by_band`."""
    place_V = np.empty_like(band_V)
    place_V[words_by_band(band_V)] = np.arange(len(band_V))
    return place_V


def slice_widths(dim: int, bands: int, div_value: float) -> list[int]:
    """Widths of disjoint slices of a vector of `dim` numbers, which sum to `dim`.

    Each band has one number; of the dim - bands others, band b has the share that falls by `div_value` from band to
    band, rounded down, and what rounding leaves goes to band 0.

    Raises:
        BadInput: There are more bands than numbers.
    """
    if bands > dim:
        raise BadInput(f"bands={bands} share a hidden vector of dim={dim}: allowed: bands from 1 to {dim}")
    share = [div_value**-band for band in range(bands)]
    rest = [1 + int((dim - bands) * part / sum(share)) for part in share[1:]]
    return [dim - sum(rest), *rest]


def projected_widths(dim: int, bands: int, div_value: float) -> list[int]:
    """Widths of projections of a vector of `dim` numbers: band b has floor(dim / div_value^b), at least 1."""
    return [max(1, int(dim / div_value**band)) for band in range(bands)]
