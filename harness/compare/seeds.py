"""Verdicts on figures of quality, which differ between seeds: a change must exceed what seeds make of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness.compare.finding import BETTER, LEVEL, UNCLEAR, WORSE, judge
from vocabench.harness.compare.many_cells import Comparison, changes
from vocabench.harness.quantities import LOWER

_ROUNDING = 1e-6  # relative difference by which the same figure may be off
_MIRRORED = {WORSE: BETTER, BETTER: WORSE}


@dataclass(frozen=True)
class Seeds:
    """A figure by seed on both sides.

    Attributes:
        quantity: Class of figures that differ between seeds in a similar way.
        better: As in `QUANTITIES`.
    """

    quantity: str
    better: str
    before: Mapping[int, float]
    after: Mapping[int, float]

    @property
    def shared(self) -> list[int]:
        return sorted(set(self.before) & set(self.after))

    @property
    def is_paired(self) -> bool:
        return len(self.shared) > 1

    @property
    def is_comparable(self) -> bool:
        """Whether both sides have a seed in common, or several seeds each."""
        return bool(self.shared) or min(len(self.before), len(self.after)) > 1

    @property
    def means(self) -> tuple[float, float]:
        """Mean of each side over the seeds that are compared."""
        before, after = self._compared
        return statistics.fmean(before), statistics.fmean(after)

    @property
    def size(self) -> float:
        """What changes are relative to."""
        before, _ = self._compared
        return statistics.fmean(map(abs, before)) or 1.0

    @property
    def is_reproduced(self) -> bool:
        """Whether every shared seed has the same figure, so that nothing changed."""
        pairs = [(self.before[seed], self.after[seed]) for seed in self.shared]
        return bool(pairs) and all(math.isclose(a, b, rel_tol=_ROUNDING, abs_tol=1e-12) for a, b in pairs)

    @property
    def comparison(self) -> Comparison:
        before, after = self._compared
        size = self.size
        # Methods differ so much between seeds that two seeds do not show whether a method belongs to its class.
        is_class = min(len(before), len(after)) > 2
        if not self.is_paired:
            groups = [(-1, [value / size for value in before]), (1, [value / size for value in after])]
            return Comparison(groups, f"{self.quantity}, seeds apart" if is_class else "")
        differences = [(b - a) / size for a, b in zip(before, after, strict=True)]
        return Comparison([(1, differences)], f"{self.quantity}, paired by seed" if is_class else "")

    @property
    def text(self) -> str:
        if self.is_paired:
            return f"{len(self.shared)} seeds, paired"
        return f"{len(self.before)} and {len(self.after)} seeds"

    @property
    def _compared(self) -> tuple[list[float], list[float]]:
        if self.is_paired:
            return [self.before[seed] for seed in self.shared], [self.after[seed] for seed in self.shared]
        return list(self.before.values()), list(self.after.values())


def judge_seeds(figures: Sequence[Seeds], least: float, level: float) -> list[tuple[str, dict[str, Any]]]:
    """Return the verdict on each figure, and further fields of its finding.

    Args:
        least: Relative change that counts as level.
    """
    judged: list[tuple[str, dict[str, Any]]] = [(LEVEL, {})] * len(figures)
    several = []
    for number, figure in enumerate(figures):
        before, after = figure.means
        fields = {"before": before, "after": after, "change": (after - before) / figure.size}
        if figure.is_reproduced:
            judged[number] = LEVEL, {**fields, "reason": "the same figures from the same seeds"}
        elif min(len(figure.before), len(figure.after)) > 1:
            several.append(number)
            judged[number] = LEVEL, fields
        else:
            reason = "one seed a side: seeds alone make such differences; 5 seeds a side would show them"
            judged[number] = UNCLEAR, {**fields, "reason": reason}
    for number, change in zip(several, changes([figures[number].comparison for number in several]), strict=True):
        figure = figures[number]
        outcome, reason = judge(change, least, level)
        if figure.better != LOWER:
            outcome = _MIRRORED.get(outcome, outcome)
        fields = {
            "low": change.low,
            "high": change.high,
            "detectable": change.detectable(least, level),
            "reason": "; ".join(filter(None, [figure.text, reason])),
        }
        judged[number] = outcome, judged[number][1] | fields
    return judged
