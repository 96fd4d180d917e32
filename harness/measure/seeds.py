"""Quality over seeds: means, differences paired by seed, and what they allow to say.

The intervals are Student's t intervals of independent runs that differ by their seed alone. Perplexities are taken on
the scale of their logarithm, which is the mean negative log-likelihood, because their spread grows with their size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from vocabench.harness.quantities import LOWER

Verdict = Literal["one seed", "level", "better", "worse"]

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        low, high: 95 % interval; infinite for a single seed, which has none.
        seeds: Number of seeds.
    """

    value: float
    low: float
    high: float
    seeds: int


def mean(values: Sequence[float]) -> Estimate:
    """Return the arithmetic mean of one or more values with its t interval."""
    values_S = np.asarray(values, np.float64)
    seeds = len(values_S)
    if not seeds:
        raise ValueError("no values: allowed: at least one")
    centre = float(values_S.mean())
    if seeds == 1:
        return Estimate(centre, -math.inf, math.inf, seeds)
    half = float(stdtrit(seeds - 1, (1 + LEVEL) / 2) * values_S.std(ddof=1) / math.sqrt(seeds))
    return Estimate(centre, centre - half, centre + half, seeds)


def geometric_mean(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of positive values, with the t interval of their logarithms."""
    return _exp(mean(np.log(values).tolist()))


def difference(values: Mapping[int, float], baseline: Mapping[int, float]) -> Estimate | None:
    """Return the mean difference to a baseline over the seeds that both have; None if they share none."""
    seeds = sorted(values.keys() & baseline.keys())
    return mean([values[seed] - baseline[seed] for seed in seeds]) if seeds else None


def relative_difference(values: Mapping[int, float], baseline: Mapping[int, float]) -> Estimate | None:
    """Return the relative difference of positive values, 0.01 for one percent more, from the mean log ratio."""
    logs = difference(*({seed: math.log(value) for seed, value in each.items()} for each in (values, baseline)))
    if logs is None:
        return None
    ratio = _exp(logs)
    return Estimate(ratio.value - 1, ratio.low - 1, ratio.high - 1, ratio.seeds)


def verdict(found: Estimate, better: str) -> Verdict:
    """Say whether a difference shows that a figure is better or worse than the baseline.

    Level means that the interval contains 0: the difference may still be as large as the ends of the interval.

    Args:
        found: The difference, the baseline subtracted.
        better: `LOWER` or `HIGHER`.
    """
    if found.seeds == 1:
        return "one seed"
    if found.low <= 0 <= found.high:
        return "level"
    return "better" if (found.value < 0) == (better == LOWER) else "worse"


def _exp(logs: Estimate) -> Estimate:
    with np.errstate(over="ignore"):
        value, low, high = (float(np.exp(log)) for log in (logs.value, logs.low, logs.high))
    return Estimate(value, low, high, logs.seeds)
