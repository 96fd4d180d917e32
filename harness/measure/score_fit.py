"""Weights of a full softmax that scores the words as another layer does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.spec import Arrays


def fit_full_softmax(log_probs_NV: NDArray, hidden_ND: NDArray, bias: bool = True) -> Arrays:
    """Find the full softmax whose probabilities are closest to those of another layer, by least squares.

    Exact search takes less time where a few words score far above the others, so a layer with trained weights has to be
    compared with a full softmax with weights of the same kind. For up to D hidden vectors in general position the fit
    is exact, and then both layers find the same words.

    Args:
        log_probs_NV: Log-probabilities of all words for each hidden vector.
        hidden_ND: Hidden vectors.
        bias: Whether the full softmax has biases.

    Returns:
        "weight", (V, D), and "bias", (V,), if there are biases, with the least norm of those that fit equally well.
    """
    inputs_NE = np.asarray(hidden_ND, np.float64)
    if bias:
        inputs_NE = np.hstack([inputs_NE, np.ones((len(hidden_ND), 1))])
    # A softmax is the same whatever is added to all of its logits, so the mean of each row is free.
    logits_NV = np.asarray(log_probs_NV, np.float64)
    logits_NV = logits_NV - logits_NV.mean(axis=1, keepdims=True)
    fitted_VE = np.ascontiguousarray(np.linalg.lstsq(inputs_NE, logits_NV, rcond=None)[0].T)
    if not bias:
        return {"weight": fitted_VE}
    return {"weight": np.ascontiguousarray(fitted_VE[:, :-1]), "bias": np.ascontiguousarray(fitted_VE[:, -1])}
