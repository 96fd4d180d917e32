"""Checks of arrays from callers: arrays of other things than numbers, and values beyond a precision, are refused."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.impls.errors import BadInput


def array_of(name: str, value: ArrayLike) -> NDArray:
    """Return `value` as an array of any dtype.

    Raises:
        BadInput: `value` is not an array, for example because its rows differ in length.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        raise BadInput(f"{name} is no array: allowed: numbers, in rows of one length") from None


def is_floating(array: NDArray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def largest(storage: str) -> float:
    """Return the largest finite value in float64, or in float32 and bfloat16, which have the same range."""
    return float(np.finfo(np.float64 if storage == "float64" else np.float32).max)
