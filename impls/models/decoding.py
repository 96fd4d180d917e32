"""Decoding of sequences, greedily or by beam search, with any model that gives the exact likeliest next words.

The search keeps its books in NumPy and is the same for every framework; the model's state stays on its device.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput


class NextWords(Protocol):
    """What decoding asks of a model. Values are log-probabilities, best first, ties by lower id."""

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Read prompts from a fresh state, and keep theirs: values and ids (B, K) of the likeliest next words."""
        ...

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Go on from some of the kept states with a word each; theirs are kept then: values and ids (R, K)."""
        ...


def greedy(model: NextWords, prompts_BT: NDArray, length: int, *, end: int = -1) -> tuple[NDArray, NDArray]:
    """The likeliest next word, again and again.

    Args:
        model: What is decoded.
        prompts_BT: (B, T) word ids, T from 1.
        length: Words to decode, from 1.
        end: The word that ends a sequence, after which it is filled with it; -1 for none.

    Returns:
        (B,) log-probability of each decoded sequence and (B, length) its words.
    """
    scores_B1, words_B1L = beam_search(model, prompts_BT, length, width=1, end=end)
    return scores_B1[:, 0], words_B1L[:, 0]


def beam_search(
    model: NextWords, prompts_BT: NDArray, length: int, *, width: int, end: int = -1, without: int = -1
) -> tuple[NDArray, NDArray]:
    """The `width` likeliest sequences that a search of that width finds.

    At each step every kept sequence is continued with its `width` likeliest words, which are exact, and the `width`
    best of all are kept; one that has ended stays as it is. Ties go to the sequence kept first, then to the lower word.

    Args:
        model: What is decoded.
        prompts_BT: (B, T) word ids, T from 1.
        length: Words to decode, from 1.
        width: Sequences kept, from 1 to V.
        end: The word that ends a sequence, after which it is filled with it; -1 for none.
        without: A word that is never taken, such as the end where sequences of exactly `length` words are wanted; -1
            for none.

    Returns:
        (B, width) log-probabilities, best first, and (B, width, length) words.

    Raises:
        BadInput: `length` or `width` is less than 1, or `prompts_BT` is not (B, T) with T from 1.
    """
    prompts_BT = np.asarray(prompts_BT)
    if prompts_BT.ndim != 2 or prompts_BT.shape[1] < 1 or prompts_BT.dtype.kind not in "iu":
        raise BadInput(f"prompts has shape {prompts_BT.shape}, {prompts_BT.dtype}: allowed: (B, T) word ids, T from 1")
    for name, number in (("length", length), ("width", width)):
        if number < 1:
            raise BadInput(f"{name}={number}: allowed: a whole number from 1")
    batch = len(prompts_BT)
    asked = width + (without >= 0)
    score_BW, word_BW = _allowed(*model.prime(prompts_BT, asked), without, width)
    words_BWL = word_BW[:, :, None].astype(np.int64)
    row_BW = np.repeat(np.arange(batch)[:, None], width, axis=1)  # the kept state that each sequence goes on from

    for _ in range(1, length):
        found_RK = model.extend(row_BW.ravel(), words_BWL[:, :, -1].ravel(), asked)
        ended_BW = words_BWL[:, :, -1] == end
        if ended_BW.all():
            words_BWL = np.concatenate([words_BWL, np.full((batch, width, length - words_BWL.shape[2]), end)], axis=2)
            break
        value_RK, id_RK = _allowed(*found_RK, without, width)
        value_BWK, id_BWK = (array.reshape(batch, width, width) for array in (value_RK, id_RK))
        # An ended sequence goes on with its end alone, at no cost.
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


def _allowed(values: NDArray, ids: NDArray, without: int, width: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The first `width` of each row's words (R, K) that are not `without`."""
    place_RW = np.argsort(np.asarray(ids) == without, axis=1, kind="stable")[:, :width]
    value_RW = np.take_along_axis(np.asarray(values, dtype=np.float64), place_RW, axis=1)
    return value_RW, np.take_along_axis(np.asarray(ids, dtype=np.int64), place_RW, axis=1)
