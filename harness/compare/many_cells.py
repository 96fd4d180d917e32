"""Changes of many cells, judged together: few runs per cell suffice because cells of one class share what they show.

The unit is a run, or a process if there is one run: rounds within a process share whatever the process keeps, such as
its placement in memory. The variance between units is pooled over the cells of a class, as far as they scatter alike.

The p-values of all cells are corrected by Holm's method. It keeps the probability of any false alarm at the level,
whatever other cells do. The method of Benjamini and Hochberg has the same power for a single slower cell, but if many
cells became faster, it calls equal ones slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from vocabench.harness.measure.variances import KNOWN_FREEDOM, moderated

_POWER = 0.9  # probability with which the detectable change is found


@dataclass(frozen=True)
class Comparison:
    """Values of independent units of the groups of one cell, as logarithms or relative to their mean.

    Attributes:
        groups: Weight and values of each group; the change is the weighted sum of the groups' means.
        kind: Class of cells that share a variance; empty if the cell has a variance of its own.
        assumed: Standard deviation between units if neither the cell nor its class has two units on one side.
    """

    groups: Sequence[tuple[float, Sequence[float]]]
    kind: str = ""
    assumed: float | None = None

    def summary(self) -> tuple[float, int, float, float]:
        """Return the change, its degrees of freedom, the sum of squared deviations from the groups' means, and the
        variance of the change divided by that of a unit."""
        change = squares = scale = 0.0
        freedom = 0
        for weight, values in self.groups:
            count = len(values)
            mean = sum(values) / count
            change += weight * mean
            scale += weight * weight / count
            if count > 1:
                freedom += count - 1
                for value in values:
                    squares += (value - mean) ** 2
        return change, freedom, squares, scale


@dataclass(frozen=True)
class Change:
    """Estimate of a change.

    Attributes:
        low, high: 95 % interval of this change alone.
        error: Standard error; NaN if nothing shows it.
        freedom: Degrees of freedom of the error.
        p: Two-sided p-value of no change, corrected for all cells of the family.
        assumed: Whether the error is an assumption, because there is one unit on each side.
        cells: Size of the family.
    """

    value: float
    low: float
    high: float
    error: float
    freedom: float
    p: float
    assumed: bool
    cells: int

    def detectable(self, least: float, level: float) -> float:
        """Return the smallest change that would have been found to exceed `least` with a probability of 90 %."""
        alone = least + _quantile(self.freedom, 0.975) * self.error
        together = _quantile(self.freedom, 1 - (1 - level) / 2 / self.cells) * self.error
        return max(alone, together) + _quantile(self.freedom, _POWER) * self.error


def changes(comparisons: Sequence[Comparison]) -> list[Change]:
    """Return the change of each cell of a family, with p-values that are corrected for all of them."""
    if not comparisons:
        return []
    summary_C4 = np.array([comparison.summary() for comparison in comparisons], np.float64)
    value_C, own_freedom_C, squares_C, scale_C = summary_C4.T
    variance_C, freedom_C = _variances(comparisons, squares_C, own_freedom_C)
    error_C = np.sqrt(variance_C * scale_C)
    with np.errstate(invalid="ignore", divide="ignore"):
        p_C = np.where(np.isfinite(error_C), 2 * stdtr(freedom_C, -np.abs(value_C / error_C)), 1.0)
        half_C = stdtrit(freedom_C, 0.975) * error_C
    assumed_C = freedom_C >= KNOWN_FREEDOM
    columns = value_C, value_C - half_C, value_C + half_C, error_C, freedom_C, holm(p_C), assumed_C
    lines = zip(*(column.tolist() for column in columns), strict=True)
    return [Change(*line, cells=len(comparisons)) for line in lines]


def holm(p_C: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return p-values such that those at most alpha contain a true null hypothesis with probability alpha or less.

    Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    order = np.argsort(p_C)
    adjusted_C = np.empty_like(p_C)
    steps = p_C[order] * np.arange(len(p_C), 0, -1)
    adjusted_C[order] = np.minimum(1, np.maximum.accumulate(steps))
    return adjusted_C


def _variances(
    comparisons: Sequence[Comparison], squares_C: NDArray[np.float64], freedom_C: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the variance of a unit of each cell, and its degrees of freedom; NaN where nothing shows it."""
    variance_C = squares_C / np.maximum(freedom_C, 1)
    known_C = np.full(len(comparisons), np.nan)
    known_freedom_C = np.full(len(comparisons), KNOWN_FREEDOM)
    classes: dict[str, list[int]] = {}
    for number, comparison in enumerate(comparisons):
        classes.setdefault(comparison.kind or f"alone {number}", []).append(number)
    for members in classes.values():
        if freedom_C[members].any():
            known_C[members], known_freedom_C[members] = moderated(variance_C[members], freedom_C[members])
            continue
        for number in members:
            assumed = comparisons[number].assumed
            if assumed is not None:
                known_C[number] = assumed**2
    return known_C, known_freedom_C


def _quantile(freedom: float, share: float) -> float:
    return float(stdtrit(freedom, share))
