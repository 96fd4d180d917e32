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


def of_text(objective: str, ids_T: NDArray, at_N: NDArray[np.int64], reach_N: NDArray[np.int64], window: int) -> Pairs:
    """Return the pairs of "cbow" or "skip_gram"."""
    return (cbow if objective == "cbow" else skip_gram)(ids_T, at_N, reach_N, window)


def pv_dbow(ids_T: NDArray, at_N: NDArray[np.int64], document: int) -> Pairs:
    """Return the index of the document of each position, `document` words each, and the word at the position."""
    return (at_N // document)[:, None].astype(np.int32), ids_T[at_N].astype(np.int32)


def _context(
    ids_T: NDArray, at_N: NDArray[np.int64], reach_N: NDArray[np.int64], window: int
) -> tuple[NDArray, NDArray[np.bool_]]:
    """Return (N, 2 window) neighbours by distance, and which of them are in reach and inside the text."""
    offsets_J = np.concatenate([np.arange(-window, 0), np.arange(1, window + 1)])
    place_NJ = at_N[:, None] + offsets_J
    real_NJ = (np.abs(offsets_J) <= reach_N[:, None]) & (place_NJ >= 0) & (place_NJ < len(ids_T))
    return np.asarray(ids_T)[np.where(real_NJ, place_NJ, 0)], real_NJ
