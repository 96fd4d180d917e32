"""Intervals for times that were measured in several processes.

The same code settles at another speed in each process, because of where its arrays lie in memory and how the machine
was used before. Rounds within a process cannot show this, so a cell is measured in a few processes, and the interval
comes from the spread between them. Few processes give a poor estimate of the spread, so that of similar cells is pooled
(Kalibera and Jones, Rigorous Benchmarking in Reasonable Time, 2013).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vocabench.harness.measure.stats import Interval


@dataclass(frozen=True)
class Spread:
    """Standard deviation between processes of the logarithm of a figure.

    Attributes:
        deviation: The standard deviation; about the relative one if it is small.
        freedom: Degrees of freedom of the estimate: processes less cells.
    """

    deviation: float
    freedom: int


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


def pooled_spread(cells: Iterable[Sequence[float]]) -> Spread | None:
    """Pool the variance between processes over cells, each given by its `centres`.

    Returns:
        The spread; None if no cell was measured in more than one process.
    """
    squares, freedom = 0.0, 0
    for values in cells:
        squares += float(np.var(values)) * len(values)
        freedom += len(values) - 1
    return Spread(math.sqrt(squares / freedom), freedom) if freedom else None


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
