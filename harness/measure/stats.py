"""Intervals for noisy timings: paired, based on ranks, and robust against a few disturbed rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float


def location(samples: Sequence[float], level: float = 0.95) -> Interval:
    """Compute the Hodges-Lehmann estimate of the centre, with the interval that inverts Wilcoxon's signed-rank test.

    The estimate is the median of all pairwise means (Walsh averages). The interval cuts off as many of them at each end
    as the test's exact null distribution allows. With fewer than six samples no interval reaches 95 %, and the whole
    range is returned.

    Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd edition, section 3.3.
    """
    values = np.asarray(samples, dtype=np.float64)
    if not len(values):
        raise ValueError("no samples: allowed: at least one")
    first, second = np.triu_indices(len(values))
    walsh = np.sort((values[first] + values[second]) / 2)
    cut = _walsh_cut(len(values), level)
    return Interval(float(np.median(walsh)), float(walsh[cut]), float(walsh[-1 - cut]))


def paired_ratio(baseline: Sequence[float], other: Sequence[float]) -> tuple[Interval, list[float]]:
    """Compute how many times faster `other` is than `baseline`: the interval, and the ratio of each round."""
    logs = np.log(np.asarray(baseline, dtype=np.float64) / np.asarray(other, dtype=np.float64))
    centre = location(logs.tolist())
    interval = Interval(*(float(np.exp(log)) for log in (centre.value, centre.low, centre.high)))
    return interval, np.exp(logs).tolist()


def _walsh_cut(count: int, level: float) -> int:
    """Return the number of Walsh averages outside the interval on each side."""
    # The number of subsets of 1..n with each sum: the exact null distribution of the signed-rank statistic.
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1
    for rank in range(1, count + 1):
        ways[rank:] = ways[rank:] + ways[:-rank]
    below = np.cumsum(ways) / ways.sum()  # below[k] = P(statistic <= k)
    rejected = int(np.searchsorted(below, (1 - level) / 2, side="right"))
    return max(0, rejected - 1)


def shift(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Interval:
    """Compute the Hodges-Lehmann estimate of `second` minus `first`, with the interval that inverts the rank-sum test.

    The estimate is the median of all differences. The interval cuts off as many of them at each end as the test's null
    distribution allows. If there are too few samples for the level, the whole range is returned.

    Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd edition, sections 4.2 and 4.3.
    """
    if not len(first) or not len(second):
        raise ValueError("no samples: allowed: at least one of each")
    differences = np.sort(np.subtract.outer(np.asarray(second, np.float64), np.asarray(first, np.float64)).ravel())
    cut = _rank_sum_cut(len(first), len(second), level)
    return Interval(float(np.median(differences)), float(differences[cut]), float(differences[-1 - cut]))


_EXACT_PAIRS = 2500  # above this, the normal approximation of the rank-sum statistic is as accurate


@cache
def _rank_sum_cut(first: int, second: int, level: float) -> int:
    """Return the number of differences outside the interval on each side."""
    tail, pairs = (1 - level) / 2, first * second
    if pairs > _EXACT_PAIRS:
        deviation = np.sqrt(pairs * (first + second + 1) / 12)
        return max(0, int(np.floor(pairs / 2 + NormalDist().inv_cdf(tail) * deviation - 0.5)))
    # Number of orders of both samples by their statistic. The largest value is either one of the first sample, above
    # all of the second, or one of the second. ways[n] counts the orders of n values of the second sample and as many of
    # the first as the outer loop has added.
    ways = [np.eye(1, pairs + 1)[0] for _ in range(second + 1)]
    for _ in range(first):
        for number in range(1, second + 1):
            with_first = np.concatenate([np.zeros(number), ways[number][: pairs + 1 - number]])
            ways[number] = with_first + ways[number - 1]
    below = np.cumsum(ways[second]) / ways[second].sum()
    rejected = int(np.searchsorted(below, tail, side="right"))
    return max(0, rejected - 1)
