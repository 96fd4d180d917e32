"""The values of a batch's targets, random inputs and uniform numbers, where the host can read them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput

BELOW_ONE = 1 - 2.0**-24  # the largest float32 below 1


def real_targets(targets_N: NDArray[np.integer], vocab: int, ignore_index: int | None) -> NDArray[np.bool_]:
    """Return which targets (N,) are words and not padding.

    Args:
        targets_N: Word ids, or `ignore_index`.
        vocab: Size of the vocabulary.
        ignore_index: The target that marks padding; None if there can be none.

    Raises:
        BadInput: A target is neither a word nor padding.
    """
    real_N = np.ones(len(targets_N), bool) if ignore_index is None else targets_N != ignore_index
    refused_R = targets_N[((targets_N < 0) | (targets_N >= vocab)) & real_N]
    if len(refused_R):
        padding = "" if ignore_index is None else f", or ignore_index={ignore_index}"
        raise BadInput(f"targets holds {refused_R[0]}: allowed: word ids from 0 to {vocab - 1}{padding}")
    return real_N


def check_ids(name: str, ids: NDArray[np.integer], vocab: int) -> None:
    """Refuse ids outside the vocabulary, in an array of any shape."""
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab:
        raise BadInput(f"{name} holds an id outside the vocabulary: allowed: word ids from 0 to {vocab - 1}")


def check_uniforms(uniforms_NU: NDArray[np.floating]) -> None:
    """Refuse numbers outside of [0, 1)."""
    if not ((uniforms_NU >= 0) & (uniforms_NU < 1)).all():
        raise BadInput("uniforms holds a number outside its range: allowed: from 0, below 1")
