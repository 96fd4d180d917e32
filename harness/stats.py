"""Intervals for noisy timings: paired, rank-based, indifferent to a few disturbed rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float


def location(samples: Sequence[float], level: float = 0.95) -> Interval:
    """Hodges-Lehmann estimate of the centre with the interval that inverts Wilcoxon's signed-rank test.

    The estimate is the median of all pairwise means (Walsh averages); the interval cuts off as many of them at each end
    as the test's exact null distribution allows. Below six samples no interval reaches 95 %, and the whole range is
    given.

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
    """How many times faster `other` is than `baseline`, round by round: the interval, and the ratio of each round."""
    logs = np.log(np.asarray(baseline, dtype=np.float64) / np.asarray(other, dtype=np.float64))
    centre = location(logs.tolist())
    interval = Interval(*(float(np.exp(v)) for v in (centre.value, centre.low, centre.high)))
    return interval, np.exp(logs).tolist()


def _walsh_cut(count: int, level: float) -> int:
    """How many Walsh averages lie outside the interval on each side."""
    # Subset sums of 1..n, counted: the exact null distribution of the signed-rank statistic.
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1
    for rank in range(1, count + 1):
        ways[rank:] = ways[rank:] + ways[:-rank]
    below = np.cumsum(ways) / ways.sum()  # below[k] = P(statistic <= k)
    rejected = int(np.searchsorted(below, (1 - level) / 2, side="right"))
    return max(0, rejected - 1)
