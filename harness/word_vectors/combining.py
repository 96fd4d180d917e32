"""Word vectors from the two sides of a model: its input vectors and its output vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import unknown

COMBINATIONS = ("input", "sum", "concatenate")


def combined(input_VD: NDArray, output_VD: NDArray, combine: str) -> NDArray:
    """Return a vector for each word, (V, D), or (V, 2 D) if both sides are concatenated.

    Args:
        input_VD: Vectors of the words that predict.
        output_VD: Vectors of the words that are predicted, in the same order.
        combine: "input" for the input vectors alone, as word2vec returns them, "sum" for the sum of both sides, as
            GloVe returns it, or "concatenate".

    Raises:
        BadInput: `combine` is none of these.
    """
    if combine not in COMBINATIONS:
        raise unknown("combination of input and output vectors", combine, COMBINATIONS)
    if combine == "input":
        return input_VD
    return input_VD + output_VD if combine == "sum" else np.concatenate([input_VD, output_VD], axis=1)
