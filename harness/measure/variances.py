"""Variances of many cells with few values each, which share what they show.

If the cells of a class scatter differently, each keeps more of its own variance (Smyth 2004, Linear models and
empirical Bayes methods for assessing differential expression, section 6), so that a noisy cell among quiet ones is not
mistaken for a quiet one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, fdtrc, polygamma

KNOWN_FREEDOM = 1e6  # degrees of freedom that stand for a known variance

_LEAST_DEVIATION = 1e-3  # no figure is repeatable to less: cells of equal values have no variance otherwise
_LEAST_PRIOR = 4.0  # degrees of freedom of the common variance: a cell with alike values by chance raises no alarm
_OUTLIER = 0.01  # probability below which a cell's variance is not one of its class
_HALVINGS = 60  # of the bracket that encloses a solution, to the precision of a float


def moderated(
    variance_C: NDArray[np.float64], freedom_C: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw the variances of the cells of a class towards their common one.

    The moments of the logarithms of the variances tell how differently the cells scatter: as many degrees of freedom as
    the common variance counts for in each cell. A cell that scatters more than chance makes of the common variance
    keeps its own variance. Cells without degrees of freedom take the common one.

    Returns:
        Variance and degrees of freedom of each cell.
    """
    own_C = freedom_C > 0
    variance_C = np.where(own_C, np.maximum(variance_C, _LEAST_DEVIATION**2), 0.0)
    variances, freedoms = variance_C[own_C], freedom_C[own_C]
    most = freedoms.sum()
    logs = np.log(variances) - digamma(freedoms / 2) + np.log(freedoms / 2)
    excess = logs.var(ddof=1) - polygamma(1, freedoms / 2).mean() if len(logs) > 1 else 0.0
    common = np.sum(variances * freedoms) / most
    if excess > polygamma(1, KNOWN_FREEDOM / 2):
        prior = max(2 * _inverse_trigamma(float(excess)), _LEAST_PRIOR)
        drawn_C = (prior * common + freedom_C * variance_C) / (prior + freedom_C)
    else:
        prior, drawn_C = most, np.full_like(variance_C, common)
    is_outlier_C = own_C & (fdtrc(np.maximum(freedom_C, 1), prior, variance_C / common) < _OUTLIER)
    drawn_C = np.where(is_outlier_C, np.maximum(drawn_C, variance_C), drawn_C)
    return drawn_C, np.minimum(prior + freedom_C, most)


def _inverse_trigamma(value: float) -> float:
    """Return the number whose trigamma function, which decreases from infinity to 0, is `value`."""
    low, high = 1e-8, KNOWN_FREEDOM
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if polygamma(1, middle) > value else (low, middle)
    return high
