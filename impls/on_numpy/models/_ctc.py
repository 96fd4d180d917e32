"""Connectionist temporal classification (Graves, Fernandez, Gomez, Schmidhuber 2006, equations 5 to 8) in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def nll(log_probs_SU: NDArray, labels_L: NDArray) -> float:
    """Return -log P of the labels, summed over all alignments to S frames with a label or a blank in each frame.

    Args:
        log_probs_SU: Log-probabilities of each frame over the units, followed by the blank.
        labels_L: Unit ids of the labels; may be empty.

    Returns:
        Negative log-likelihood in nats. It is infinite if there are fewer frames than labels plus the blanks between
        equal labels.
    """
    blank = log_probs_SU.shape[1] - 1
    state_Z = np.full(2 * len(labels_L) + 1, blank)  # a blank before, between and after the labels
    state_Z[1::2] = labels_L
    # A blank between two labels may be skipped unless the labels are equal.
    can_skip_Z = np.zeros(len(state_Z), dtype=bool)
    can_skip_Z[3::2] = labels_L[1:] != labels_L[:-1]

    log_forward_Z = np.full(len(state_Z), -np.inf)
    log_forward_Z[:2] = log_probs_SU[0, state_Z[:2]]
    for log_probs_U in log_probs_SU[1:]:
        before = np.concatenate([[-np.inf, -np.inf], log_forward_Z])
        skipped_Z = np.where(can_skip_Z, before[:-2], -np.inf)
        log_forward_Z = np.logaddexp(np.logaddexp(before[2:], before[1:-1]), skipped_Z) + log_probs_U[state_Z]
    return -float(np.logaddexp.reduce(log_forward_Z[-2:]))
