"""Decoding of sequences, greedily or by beam search, with any model that returns the exact top next words.

The search runs in NumPy and is the same for all frameworks. The state of the model stays on its device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput


@dataclass(frozen=True)
class PathSearch:
    """Settings of a search for next words along the paths of a binary tree, which is not exact.

    Attributes:
        width: Number of paths that are followed, from the number of words that are wanted.
        levels: Levels of the tree between two selections.
    """

    width: int
    levels: int = 1


class NextWords(Protocol):
    """Interface of models that can be decoded.

    Values are log-probabilities in descending order. Ties are broken in favour of the lower id.
    """

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Read prompts from a fresh state and keep the states after them.

        Returns:
            Values and ids (B, K) of the most probable next words.
        """
        ...

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Read one word after each of the selected kept states, and keep the resulting states instead.

        Returns:
            Values and ids (R, K) of the most probable next words.
        """
        ...


def greedy(model: NextWords, prompts_BT: NDArray, length: int, *, end: int = -1) -> tuple[NDArray, NDArray]:
    """Decode by taking the most probable next word at each step.

    Args:
        model: Model to decode.
        prompts_BT: Word ids (B, T), T from 1.
        length: Number of words to decode, from 1.
        end: Word that ends a sequence and fills the positions after its end; -1 for none.

    Returns:
        Log-probabilities (B,) and words (B, length) of the decoded sequences.
    """
    scores_B1, words_B1L = beam_search(model, prompts_BT, length, width=1, end=end)
    return scores_B1[:, 0], words_B1L[:, 0]


def beam_search(
    model: NextWords, prompts_BT: NDArray, length: int, *, width: int, end: int = -1, without: Sequence[int] = ()
) -> tuple[NDArray, NDArray]:
    """Decode the `width` best sequences that a beam search of this width reaches.

    At each step, each kept sequence is extended by its `width` most probable words, which are exact. The `width` best
    of all extensions are kept. A sequence that has ended stays the same. Ties are broken in favour of the sequence kept
    first, then of the lower word.

    Args:
        model: Model to decode.
        prompts_BT: Word ids (B, T), T from 1.
        length: Number of words to decode, from 1.
        width: Number of sequences to keep, from 1 to V.
        end: Word that ends a sequence and fills the positions after its end; -1 for none.
        without: Words that are never taken. The end, for example, makes all sequences exactly `length` words long.

    Returns:
        Log-probabilities (B, width), best first, and words (B, width, length).

    Raises:
        BadInput: `length` or `width` is less than 1, or `prompts_BT` is not (B, T) with T from 1.
    """
    prompts_BT = np.asarray(prompts_BT)
    if prompts_BT.ndim != 2 or prompts_BT.shape[1] < 1 or prompts_BT.dtype.kind not in "iu":
        raise BadInput(f"prompts has shape {prompts_BT.shape}, {prompts_BT.dtype}: allowed: (B, T) word ids, T from 1")
    for name, value in (("length", length), ("width", width)):
        if value < 1:
            raise BadInput(f"{name}={value}: allowed: a whole number from 1")
    batch = len(prompts_BT)
    candidates = width + len(without)
    score_BW, word_BW = _allowed(*model.prime(prompts_BT, candidates), without, width)
    words_BWL = word_BW[:, :, None].astype(np.int64)
    row_BW = np.repeat(np.arange(batch)[:, None], width, axis=1)  # kept state of each sequence

    for _ in range(1, length):
        next_words = model.extend(row_BW.ravel(), words_BWL[:, :, -1].ravel(), candidates)
        ended_BW = words_BWL[:, :, -1] == end
        if ended_BW.all():
            words_BWL = np.concatenate([words_BWL, np.full((batch, width, length - words_BWL.shape[2]), end)], axis=2)
            break
        value_RK, id_RK = _allowed(*next_words, without, width)
        value_BWK, id_BWK = (array.reshape(batch, width, width) for array in (value_RK, id_RK))
        # An ended sequence continues with its end only, at no cost.
        first_K = np.arange(width) == 0
        value_BWK = np.where(ended_BW[:, :, None], np.where(first_K, 0.0, -np.inf), value_BWK)
        id_BWK = np.where(ended_BW[:, :, None], end, id_BWK)
        total_BF = (score_BW[:, :, None] + value_BWK).reshape(batch, -1)
        best_BW = np.argsort(-total_BF, axis=1, kind="stable")[:, :width]
        score_BW = np.take_along_axis(total_BF, best_BW, axis=1)
        parent_BW = best_BW // width
        kept_BWL = np.take_along_axis(words_BWL, parent_BW[:, :, None], axis=1)
        next_BW = np.take_along_axis(id_BWK.reshape(batch, -1), best_BW, axis=1)
        words_BWL = np.concatenate([kept_BWL, next_BW[:, :, None]], axis=2)
        row_BW = np.arange(batch)[:, None] * width + parent_BW
    return score_BW, words_BWL


def _allowed(
    values: NDArray, ids: NDArray, without: Sequence[int], width: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the values and ids (R, width) of each row's first `width` words that are not in `without`."""
    place_RW = np.argsort(np.isin(ids, without), axis=1, kind="stable")[:, :width]
    value_RW = np.take_along_axis(np.asarray(values, dtype=np.float64), place_RW, axis=1)
    return value_RW, np.take_along_axis(np.asarray(ids, dtype=np.int64), place_RW, axis=1)
