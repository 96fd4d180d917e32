"""Bags of inputs and their targets from running text, for CBOW, skip-gram and paragraph vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

OBJECTIVES = ("cbow", "skip_gram", "pv_dbow")

Pairs = tuple[NDArray[np.int32], NDArray[np.int32]]  # bags (N, J), -1 beyond the last input; targets (N,)


def cbow(ids_T: NDArray, at_N: NDArray[np.int64], reach_N: NDArray[np.int64], window: int) -> Pairs:
    """Return the words within `reach` of each position, without the word itself, and the word as the target."""
    context_NJ, real_NJ = _context(ids_T, at_N, reach_N, window)
    return np.where(real_NJ, context_NJ, -1).astype(np.int32), ids_T[at_N].astype(np.int32)


def skip_gram(ids_T: NDArray, at_N: NDArray[np.int64], reach_N: NDArray[np.int64], window: int) -> Pairs:
    """Return pairs of the word at each position and, as the target, a word within its `reach`."""
    context_NJ, real_NJ = _context(ids_T, at_N, reach_N, window)
    bags_NJ = np.broadcast_to(ids_T[at_N][:, None], context_NJ.shape)
    return bags_NJ[real_NJ][:, None].astype(np.int32), context_NJ[real_NJ].astype(np.int32)


def skip_gram_by_target(
    ids_T: NDArray, at_N: NDArray[np.int64], reach_N: NDArray[np.int64], window: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Return the pairs of `skip_gram` the other way round: words within `reach` predict the word at each position.

    Over a whole text these are the same pairs. Those with the same target are neighbours here.

    Returns:
        Inputs (P, 1), the word at each position (N,), and the number of the position for each pair (P,).
    """
    context_NJ, real_NJ = _context(ids_T, at_N, reach_N, window)
    position_P = np.nonzero(real_NJ)[0]
    return context_NJ[real_NJ][:, None].astype(np.int32), ids_T[at_N].astype(np.int32), position_P.astype(np.int32)


def of_text(objective: str, ids_T: NDArray, at_N: NDArray[np.int64], reach_N: NDArray[np.int64], window: int) -> Pairs:
    """Return the pairs of "cbow" or "skip_gram"."""
    return (cbow if objective == "cbow" else skip_gram)(ids_T, at_N, reach_N, window)


def pv_dbow(ids_T: NDArray, at_N: NDArray[np.int64], document: int) -> Pairs:
    """Return the index of the document of each position, `document` words each, and the word at the position."""
    return (at_N // document)[:, None].astype(np.int32), ids_T[at_N].astype(np.int32)


def keep_rare(
    ids_T: NDArray[np.integer], counts_V: NDArray[np.int64], threshold: float, rng: np.random.Generator
) -> NDArray[np.integer]:
    """Return the text without a random part of its frequent words, as word2vec sees it.

    Each occurrence of a word with relative frequency f is dropped with probability 1 - sqrt(threshold / f), if f is
    above the threshold (Mikolov et al. 2013, arXiv 1310.4546, equation 5). Windows then reach over dropped words.
    """
    share_V = np.maximum(counts_V, 1) / counts_V.sum()
    keep_V = np.sqrt(threshold / share_V).astype(np.float32)
    return ids_T[rng.random(len(ids_T), np.float32) < keep_V[ids_T]]


def _context(
    ids_T: NDArray, at_N: NDArray[np.int64], reach_N: NDArray[np.int64], window: int
) -> tuple[NDArray, NDArray[np.bool_]]:
    """Return (N, 2 window) neighbours by distance, and which of them are in reach and inside the text."""
    offsets_J = np.concatenate([np.arange(-window, 0), np.arange(1, window + 1)])
    place_NJ = at_N[:, None] + offsets_J
    real_NJ = (np.abs(offsets_J) <= reach_N[:, None]) & (place_NJ >= 0) & (place_NJ < len(ids_T))
    return np.asarray(ids_T)[np.where(real_NJ, place_NJ, 0)], real_NJ
