"""Distinct windows of characters in words, and blocks of words of about the same length."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.structures.spelling import END

WIDEST = 4  # characters of a window, which belongs to the second one
BLOCK = 1024  # words per block: the scores fit into the cache, and a GPU has enough work


def windows(characters_VL: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the distinct windows (U, 4) c_{t-1}..c_{t+2} of all words, and the window ids (V, T) of each word.

    Each character c_t of a word, marks excluded, has one window. Positions beyond the end mark are padding. Rows of
    words with fewer than T characters are filled with -1.
    """
    in_word_VT = characters_VL[:, 1:-1] > END
    padded_VL = np.pad(characters_VL, ((0, 0), (0, 1)))
    all_SK = np.lib.stride_tricks.sliding_window_view(padded_VL, WIDEST, axis=1)[in_word_VT]
    windows_UK, ids_S = np.unique(all_SK, axis=0, return_inverse=True)
    ids_VT = np.full(in_word_VT.shape, -1, dtype=np.int32)
    ids_VT[in_word_VT] = ids_S.reshape(-1)
    return windows_UK, ids_VT


class Blocks(NamedTuple):
    """Words sorted by descending length in blocks of W words. The last word is repeated to fill the last block.

    Attributes:
        ids_BTW: Windows of each word, filled up with its first window.
        places_B: Number of windows of the longest word in each block.
        rank_V: Position of each word among all B W words.
    """

    ids_BTW: NDArray[np.int32]
    places_B: NDArray[np.int32]
    rank_V: NDArray[np.int32]


def blocks(ids_VT: NDArray[np.int32]) -> Blocks:
    """Return blocks of words, given the window ids of `windows`. Blocks need little filling, as lengths are similar."""
    vocab = len(ids_VT)
    length_V = (ids_VT >= 0).sum(axis=1, dtype=np.int32)
    order_V = np.argsort(-length_V, kind="stable")
    rank_V = np.empty(vocab, dtype=np.int32)
    rank_V[order_V] = np.arange(vocab)
    count = -(-vocab // BLOCK)
    words = -(-vocab // count)
    filled = np.pad(order_V, (0, count * words - vocab), mode="edge").reshape(count, words)
    ids_BWT = np.where(ids_VT >= 0, ids_VT, ids_VT[:, :1])[filled]
    return Blocks(np.ascontiguousarray(ids_BWT.transpose(0, 2, 1)), length_V[filled[:, 0]], rank_V)
