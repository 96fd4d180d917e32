"""Bootstrap over samples: percentile intervals of means, and the paired test between two systems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.stats import Interval

RESAMPLES = 1000
_LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """
    Attributes:
        interval: Of the mean difference.
        p_value: Two-sided: how often chance alone would give a mean difference at least as large.
    """

    interval: Interval
    p_value: float


def intervals(values_SQ: NDArray[np.float64], resamples: int = RESAMPLES, seed: int = 0) -> list[Interval]:
    """The mean of each of Q quantities over S samples, with its 95 % percentile interval over resamples.

    Efron and Tibshirani, An Introduction to the Bootstrap, section 13.3.
    """
    means_BQ = np.stack([weights_S @ values_SQ for weights_S in _weights(len(values_SQ), resamples, seed)])
    return _percentiles(values_SQ.mean(axis=0), means_BQ)


def differences(
    first_SQ: NDArray[np.float64], second_SQ: NDArray[np.float64], resamples: int = RESAMPLES, seed: int = 0
) -> list[Difference]:
    """The mean of first - second of each quantity, both systems resampled by the same samples (Koehn 2004).

    The p value is the share of resamples whose mean difference lies at least as far from the one observed as that does
    from zero: the bootstrap distribution, centred, stands for that of systems which do not differ (Riezler and Maxwell
    2005). The observed sample counts as one more resample, so that no p value is zero.
    """
    values_SQ = first_SQ - second_SQ
    found_Q = values_SQ.mean(axis=0)
    means_BQ = np.stack([weights_S @ values_SQ for weights_S in _weights(len(values_SQ), resamples, seed)])
    # The tolerance is for sums in another order: the same samples must count as no nearer.
    as_far_Q = (np.abs(means_BQ - found_Q) >= np.abs(found_Q) - 1e-12).sum(axis=0)
    p_Q = (1 + as_far_Q) / (1 + resamples)
    return [Difference(each, float(p)) for each, p in zip(_percentiles(found_Q, means_BQ), p_Q, strict=True)]


def _weights(samples: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """The share that each sample has in each resample: the (resamples, samples) matrix never exists whole."""
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(rng.integers(samples, size=samples), minlength=samples) / samples


def _percentiles(found_Q: NDArray[np.float64], means_BQ: NDArray[np.float64]) -> list[Interval]:
    low_Q, high_Q = np.quantile(means_BQ, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
    return [Interval(*map(float, each)) for each in zip(found_Q, low_Q, high_Q, strict=True)]
