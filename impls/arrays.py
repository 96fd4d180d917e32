"""Arrays from outside, as they come in: what holds no numbers, or numbers that a precision cannot hold, is refused."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.impls.errors import BadInput


def array_of(name: str, value: ArrayLike) -> NDArray:
    """`value` as an array of any kind.

    Raises:
        BadInput: It is none, such as rows of different lengths.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        raise BadInput(f"{name} is no array: allowed: numbers, in rows of one length") from None


def is_floating(array: NDArray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def largest(storage: str) -> float:
    """What numbers kept in float64, or else in float32 or bfloat16, do not exceed."""
    return float(np.finfo(np.float64 if storage == "float64" else np.float32).max)
