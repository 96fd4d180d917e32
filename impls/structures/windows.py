"""Windows of characters that words have in common, and words in blocks of about the same length."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.structures.spelling import END

WIDEST = 4  # characters of a window, the second of which has the window
BLOCK = 1024  # words pooled at a time: their scores stay in the cache, and a GPU has enough to do


def windows(characters_VL: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(U, 4) the different windows c_{t-1}..c_{t+2} of all words, and (V, T) which of them are a word's, in its order.

    Each character c_t of a word, which marks are not, has one. What reaches beyond the end mark is padding. In rows of
    words with fewer than T characters, -1 follows.
    """
    own_VT = characters_VL[:, 1:-1] > END
    padded_VL = np.pad(characters_VL, ((0, 0), (0, 1)))
    all_SK = np.lib.stride_tricks.sliding_window_view(padded_VL, WIDEST, axis=1)[own_VT]
    windows_UK, ids_S = np.unique(all_SK, axis=0, return_inverse=True)
    ids_VT = np.full(own_VT.shape, -1, dtype=np.int32)
    ids_VT[own_VT] = ids_S.reshape(-1)
    return windows_UK, ids_VT


class Blocks(NamedTuple):
    """Words sorted by falling length, W a block, the last word repeated where it takes that.

    Attributes:
        ids_BTW: Windows of each word; its first again where it has no more.
        places_B: Windows of the block's longest word.
        rank_V: At which of the B W places each word is.
    """

    ids_BTW: NDArray[np.int32]
    places_B: NDArray[np.int32]
    rank_V: NDArray[np.int32]


def blocks(ids_VT: NDArray[np.int32]) -> Blocks:
    """Of words as `windows` gives them. Few places of a block are no word's own, since its words are about as long."""
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
