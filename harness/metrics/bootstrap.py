"""Bootstrap over samples: percentile intervals of means and of pooled rates, and the paired test between two systems.

A quantity is the mean of its values over samples or, if the samples have sizes, the sum of the values divided by the
sum of the sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.measure.stats import Interval

RESAMPLES = 1000
_LEVEL = 0.95
_BLOCK = 100  # resamples at a time
_MOST_KEPT = 10**7  # counts that are kept, at two bytes each


@dataclass(frozen=True)
class Difference:
    """
    Attributes:
        interval: Interval of the difference.
        p_value: Two-sided probability that chance alone gives a difference at least as large.
    """

    interval: Interval
    p_value: float


def intervals(
    values_SQ: NDArray[np.float64],
    resamples: int = RESAMPLES,
    seed: int = 0,
    sizes_S: NDArray[np.float64] | None = None,
) -> list[Interval]:
    """Return each of Q quantities of S samples with its 95 % percentile interval over resamples.

    See Efron and Tibshirani, An Introduction to the Bootstrap, section 13.3.

    Args:
        values_SQ: Values of each sample.
        resamples: Number of resamples.
        seed: Seed of the resamples.
        sizes_S: Size of each sample, at least 0 and not all 0; None for means.
    """
    return _percentiles(*_resampled(values_SQ, resamples, seed, sizes_S))


def differences(
    first_SQ: NDArray[np.float64],
    second_SQ: NDArray[np.float64],
    resamples: int = RESAMPLES,
    seed: int = 0,
    sizes_S: NDArray[np.float64] | None = None,
) -> list[Difference]:
    """Return first - second for each quantity, with the same resamples for both systems (Koehn 2004).

    The p value is the share of resamples whose difference is at least as far from the observed difference as the
    observed difference is from zero: the centred bootstrap distribution serves as that of systems that do not differ
    (Riezler and Maxwell 2005). The observed sample counts as one more resample, so that no p value is zero.
    """
    return _tested(*_resampled(first_SQ - second_SQ, resamples, seed, sizes_S))


def rate_difference(
    first: tuple[NDArray[np.float64], NDArray[np.float64]],
    second: tuple[NDArray[np.float64], NDArray[np.float64]],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """Return first - second for pooled rates whose samples need not have the same sizes; see `differences`.

    Args:
        first, second: Values and sizes of the samples, (S,) each.
        resamples: Number of resamples. Those in which a system has only samples of size 0 are left out.
        seed: Seed of the resamples.
    """
    columns_S4 = np.stack([*first, *second], axis=1)
    sums_B4 = np.concatenate([weights_BS @ columns_S4 for weights_BS in _weights(len(columns_S4), resamples, seed)])
    sums_B4 = sums_B4[(sums_B4[:, 1] > 0) & (sums_B4[:, 3] > 0)]
    found, *drawn = (sums[..., 0] / sums[..., 1] - sums[..., 2] / sums[..., 3] for sums in (columns_S4.sum(0), sums_B4))
    return _tested(np.array([found]), drawn[0][:, None])[0]


def _tested(found_Q: NDArray[np.float64], drawn_BQ: NDArray[np.float64]) -> list[Difference]:
    """Return the differences with the p values of `differences`."""
    # The tolerance covers sums in another order: equal samples must not count as closer.
    as_far_Q = (np.abs(drawn_BQ - found_Q) >= np.abs(found_Q) - 1e-12).sum(axis=0)
    p_Q = (1 + as_far_Q) / (1 + len(drawn_BQ))
    return [Difference(each, float(p)) for each, p in zip(_percentiles(found_Q, drawn_BQ), p_Q, strict=True)]


def _resampled(
    values_SQ: NDArray[np.float64], resamples: int, seed: int, sizes_S: NDArray[np.float64] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the observed quantities, (Q,), and those of each resample, (resamples, Q).

    Resamples whose sizes are all 0 are left out.
    """
    blocks = _weights(len(values_SQ), resamples, seed)
    if sizes_S is None:
        return values_SQ.mean(axis=0), np.concatenate([weights_BS @ values_SQ for weights_BS in blocks])
    drawn = [(weights_BS @ values_SQ, weights_BS @ sizes_S) for weights_BS in blocks]
    sums_BQ, size_B = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    return values_SQ.sum(axis=0) / sizes_S.sum(), sums_BQ[size_B > 0] / size_B[size_B > 0, None]


def _weights(samples: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield the weights of the samples in blocks of resamples, so that no (resamples, samples) matrix is needed."""
    draw = _kept_counts if samples * resamples <= _MOST_KEPT else _counts
    for counts_BS in draw(samples, resamples, seed):
        yield counts_BS / samples


def _counts(samples: int, resamples: int, seed: int) -> Iterator[NDArray[np.uint16]]:
    """Yield how often each resample has each sample."""
    rng = np.random.default_rng(seed)
    for first in range(0, resamples, _BLOCK):
        rows = range(first, min(first + _BLOCK, resamples))
        drawn = [np.bincount(rng.integers(samples, size=samples), minlength=samples) for _ in rows]
        yield np.array(drawn).astype(np.uint16)


@lru_cache(maxsize=4)
def _kept_counts(samples: int, resamples: int, seed: int) -> list[NDArray[np.uint16]]:
    """Return the same as `_counts`. Systems that are scored on the same samples have the same resamples."""
    return list(_counts(samples, resamples, seed))


def _percentiles(found_Q: NDArray[np.float64], drawn_BQ: NDArray[np.float64]) -> list[Interval]:
    low_Q, high_Q = np.quantile(drawn_BQ, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
    return [Interval(*map(float, each)) for each in zip(found_Q, low_Q, high_Q, strict=True)]
