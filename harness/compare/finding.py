"""Findings of a comparison, and the rule by which an estimated change becomes a verdict."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from vocabench.harness.compare.many_cells import Change
from vocabench.harness.compare.matching import Entry

WORSE, MISSING, UNCLEAR, NOT_COMPARABLE, BETTER, NEW, LEVEL = VERDICTS = (
    "worse", "missing", "unclear", "not comparable", "better", "new", "level",
)  # fmt: skip

RATIO = "x"  # unit of speedups and of ratios between frameworks

OTHERWISE_DEFINED = "measured by another definition: see docs/quantities.md"

_LARGEST = 700.0  # largest logarithm whose exponential is a finite float


@dataclass(frozen=True)
class Limits:
    """Thresholds of a comparison.

    Attributes:
        cost: Largest relative change of a time or of memory that counts as level.
        quality: Largest relative change of perplexity, error rates and other figures that counts as level.
        level: Probability that no equal cell of a comparison is called worse or better.
    """

    cost: float = 0.05
    quality: float = 0.01
    level: float = 0.95


@dataclass(frozen=True)
class Finding:
    """One comparison.

    Attributes:
        cell: Label of the cell.
        quantity: Name of the quantity; empty for a cell as a whole.
        before, after: Figure on both sides in `unit`; for a time paired with full softmax, the speedup over it.
        change: Relative change of the quantity, positive if it grew; for a paired time, relative to full softmax.
        low, high: 95 % interval of the change, if there is one.
        detectable: Smallest change for the worse that would have been found with a probability of 90 %.
    """

    verdict: str
    cell: str
    quantity: str = ""
    before: float | None = None
    after: float | None = None
    unit: str = ""
    change: float | None = None
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    reason: str = ""


def judge(change: Change, least: float, level: float) -> tuple[str, str]:
    """Return the verdict on a change, which is positive for the worse, and why it is unclear.

    Worse or better is a change whose interval lies beyond `least`, and which is significant among all cells of its
    family.
    """
    if math.isnan(change.error):
        return UNCLEAR, ""
    significant = change.p <= 1 - level
    if significant and change.low > least:
        return WORSE, ""
    if significant and change.high < -least:
        return BETTER, ""
    if -least <= change.low and change.high <= least:
        return LEVEL, ""
    if change.low > least or change.high < -least:
        return UNCLEAR, f"may be chance among {change.cells} compared figures"
    if change.low > 0 or change.high < 0:
        return UNCLEAR, "the interval crosses the threshold"
    return UNCLEAR, "neither a change nor its absence is shown"


def finding(verdict: str, a: Entry, b: Entry | None, **more: Any) -> Finding:
    """Return a finding with the figures of both sides, unless `more` has others."""
    after = b.value if b is not None else None
    fields = {"before": a.value, "after": after, "unit": a.unit, "change": relative(a.value, after), **more}
    return Finding(verdict, a.cell.label, a.quantity, **fields)


def relabelled(found: Finding, label: str) -> Finding:
    return dataclasses.replace(found, cell=label)


def relative(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or before == 0 else (after - before) / abs(before)


def growth(log: float) -> float:
    """Return the relative change of which `log` is the logarithm."""
    return math.expm1(min(log, _LARGEST))


def power(log: float) -> float:
    return math.exp(min(log, _LARGEST))
