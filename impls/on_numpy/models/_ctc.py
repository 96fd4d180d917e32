"""Connectionist temporal classification (Graves, Fernandez, Gomez, Schmidhuber 2006, equations 5 to 8) in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def nll(log_probs_SU: NDArray, labels_L: NDArray) -> float:
    """-log of the probability of all ways to say the labels in S frames, a label or a blank in each.

    Args:
        log_probs_SU: Of each frame, over the units and, as the last, the blank.
        labels_L: Unit ids, any number of them.

    Returns:
        Nats; infinite where there are fewer frames than labels and blanks between equal labels.
    """
    blank = log_probs_SU.shape[1] - 1
    said_Z = np.full(2 * len(labels_L) + 1, blank)  # a blank before, between and after the labels
    said_Z[1::2] = labels_L
    # A blank between two labels may be left out, unless they are equal.
    leaps_Z = np.zeros(len(said_Z), dtype=bool)
    leaps_Z[3::2] = labels_L[1:] != labels_L[:-1]

    log_forward_Z = np.full(len(said_Z), -np.inf)
    log_forward_Z[:2] = log_probs_SU[0, said_Z[:2]]
    for log_probs_U in log_probs_SU[1:]:
        before = np.concatenate([[-np.inf, -np.inf], log_forward_Z])
        leapt_Z = np.where(leaps_Z, before[:-2], -np.inf)
        log_forward_Z = np.logaddexp(np.logaddexp(before[2:], before[1:-1]), leapt_Z) + log_probs_U[said_Z]
    return -float(np.logaddexp.reduce(log_forward_Z[-2:]))
