"""Intervals for times that were measured in several processes.

The same code settles at another speed in each process, because of where its arrays lie in memory and how the machine
was used before. Rounds within a process cannot show this, so a cell is measured in a few processes, and the interval
comes from the spread between them. Few processes give a poor estimate of the spread, so that of similar cells is pooled
as far as they scatter alike (Kalibera and Jones, Rigorous Benchmarking in Reasonable Time, 2013).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vocabench.harness.measure.stats import Interval
from vocabench.harness.measure.variances import moderated


@dataclass(frozen=True)
class Spread:
    """Standard deviation between processes of the logarithm of a figure.

    Attributes:
        deviation: The standard deviation; about the relative one if it is small.
        freedom: Degrees of freedom of the estimate.
    """

    deviation: float
    freedom: float


def centres(samples: Sequence[float], rounds: Sequence[int]) -> list[float]:
    """Return the median of the logarithms of each process' samples.

    Args:
        samples: Samples of all processes, one process after another.
        rounds: Number of samples of each process.

    Raises:
        ValueError: The numbers do not add up to the number of samples.
    """
    if sum(rounds) != len(samples):
        raise ValueError(f"{len(samples)} samples of processes with {list(rounds)} rounds: allowed: {sum(rounds)}")
    logs = np.log(np.asarray(samples, dtype=np.float64))
    return [float(np.median(part)) for part in np.split(logs, np.cumsum(rounds)[:-1])]


def spreads(cells: Sequence[Sequence[float]]) -> list[Spread] | None:
    """Estimate the spread between processes of each cell of a class, given by its `centres`.

    Each cell counts with what all of the class show (`variances.moderated`).

    Returns:
        The spread of each cell; None if no cell was measured in more than one process.
    """
    freedom_C = np.array([len(values) - 1 for values in cells], np.float64)
    if not freedom_C.any():
        return None
    own_C = np.array([np.var(values, ddof=1) if len(values) > 1 else 0.0 for values in cells])
    variance_C, freedom_C = moderated(own_C, freedom_C)
    pairs = zip(np.sqrt(variance_C).tolist(), freedom_C.tolist(), strict=True)
    return [Spread(deviation, freedom) for deviation, freedom in pairs]


def class_deviation(cells: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation between processes, pooled over cells; NaN if none has several processes."""
    several = [values for values in cells if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    return math.sqrt(sum(float(np.var(values)) * len(values) for values in several) / freedom) if freedom else math.nan


def interval(values: Sequence[float], spread: Spread, level: float = 0.95) -> Interval:
    """Return the geometric mean of the processes with its interval by Student's t.

    Args:
        values: `centres` of the processes.
        spread: Spread between processes, of this cell or pooled.
    """
    from scipy.special import stdtrit  # slow to import

    centre = float(np.mean(values))
    half_width = float(stdtrit(spread.freedom, (1 + level) / 2)) * spread.deviation / math.sqrt(len(values))
    return Interval(math.exp(centre), math.exp(centre - half_width), math.exp(centre + half_width))
