"""Verdicts on times: which values are compared, and what the change of each cell is among all of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness.compare.finding import (
    BETTER,
    LEVEL,
    NOT_COMPARABLE,
    RATIO,
    UNCLEAR,
    WORSE,
    Finding,
    Limits,
    finding,
    growth,
    judge,
    power,
)
from vocabench.harness.compare.many_cells import Change, Comparison, changes
from vocabench.harness.compare.matching import Entry, Run
from vocabench.harness.compare.run_values import error_within, has_values, unit_values
from vocabench.harness.quantities import class_of_time

# Between processes of equal code, times of short decoding had a standard deviation of up to 10 %.
_ASSUMED = 0.1
_ASSUMPTION = "one process a side: a deviation of {:.0f} % between processes is assumed"

_SEVERAL = 3  # with at least this many runs a side, the differences between runs show their deviation
NO_NOISE = f"absolute time with no measure of its noise: {_SEVERAL} runs a side would be one"

_MACHINE = (("machine", "cpu"), ("machine", "cores"), ("framework", "threads"), ("framework", "device_name"))


@dataclass(frozen=True)
class Pair:
    """A time on both sides.

    Attributes:
        key: Identity of the cell, and the quantity.
        is_relative: Whether it is relative to full softmax, with which it was timed in alternation.
    """

    key: tuple[str, str]
    a: Entry
    b: Entry

    @property
    def is_relative(self) -> bool:
        return not self.a.is_baseline and self.a.is_paired and self.b.is_paired


def is_few(*entries: Entry) -> bool:
    return min(len(entry.single_runs) for entry in entries) < _SEVERAL


def relative_times(
    old: Run, new: Run, pairs: Sequence[Pair], limits: Limits, level: float
) -> tuple[list[Finding], dict[tuple[str, str], Change]]:
    """Judge times relative to full softmax's, measured in alternation with it: a slower machine slows both.

    Returns:
        Findings, and the change of each time by its key.
    """
    comparisons, values = [], []
    for pair in pairs:
        (before, after), unit = unit_values([pair.a, pair.b], relative=True)
        values.append((before, after))
        # log(full softmax / this) decreases as this becomes slower.
        comparisons.append(Comparison([(1, before), (-1, after)], f"{_kind(pair)}, {unit}", _assumed(old, new, pair)))
    found = changes(comparisons)
    findings = []
    for pair, comparison, change, (before, after) in zip(pairs, comparisons, found, values, strict=True):
        outcome, reason = judge(change, math.log1p(limits.cost), level)
        if outcome == UNCLEAR and change.assumed:
            reason = _ASSUMPTION.format(100 * (comparison.assumed or 0))
        figures = {"before": power(statistics.fmean(before)), "after": power(statistics.fmean(after)), "unit": RATIO}
        findings.append(
            finding(outcome, pair.a, pair.b, **figures, **_columns(change, limits.cost, level), reason=reason)
        )
    return findings, {pair.key: change for pair, change in zip(pairs, found, strict=True)}


def absolute_times(
    old: Run,
    new: Run,
    pairs: Sequence[Pair],
    limits: Limits,
    level: float,
    relative_changes: dict[tuple[str, str], Change],
) -> list[Finding]:
    """Judge times that were not paired with another, and full softmax's own times.

    What slows one run slows all of its cells. So each cell has a variance of its own, and full softmax's time counts as
    changed only if most of the layers timed in alternation with it moved the other way relative to it.
    """
    comparisons = []
    for pair in pairs:
        (before, after), _ = unit_values([pair.a, pair.b], relative=False)
        assumed = _assumed(old, new, pair) if pair.a.is_baseline and pair.a.is_paired else None
        comparisons.append(Comparison([(-1, before), (1, after)], assumed=assumed))
    findings = []
    for pair, comparison, change in zip(pairs, comparisons, changes(comparisons), strict=True):
        outcome, reason = judge(change, math.log1p(limits.cost), level)
        if outcome == UNCLEAR and change.assumed:
            reason = _ASSUMPTION.format(100 * (comparison.assumed or 0))
        if outcome in (WORSE, BETTER) and pair.a.is_baseline:
            witnesses = _witnesses(old, pair.a, relative_changes)
            if witnesses and statistics.median(w.high if outcome == WORSE else -w.low for w in witnesses) >= 0:
                outcome, reason = UNCLEAR, "all layers moved alike: the machine, or code that they share"
        if outcome != LEVEL and not pair.a.is_paired and is_few(pair.a, pair.b):
            outcome, reason = UNCLEAR, NO_NOISE
        reason = reason or "absolute time"
        findings.append(finding(outcome, pair.a, pair.b, reason=reason, **_columns(change, limits.cost, level)))
    return findings


def ratios_of_frameworks(
    fours: Sequence[tuple[Entry, Entry, Entry, Entry]], limits: Limits, level: float
) -> list[tuple[str, dict[str, Any]]]:
    """Judge the ratio of two frameworks' times: those of the first and the second before, and then both after.

    The frameworks are measured in different processes, whose differences do not cancel.

    Returns:
        Verdicts, and further fields of the findings.
    """
    comparisons = []
    for four in fours:
        values, _ = unit_values(four, relative=False)
        comparisons.append(Comparison(list(zip((-1, 1, 1, -1), values, strict=True))))
    judged = []
    for four, change in zip(fours, changes(comparisons), strict=True):
        outcome, reason = judge(change, math.log1p(limits.cost), level)
        if outcome != LEVEL and is_few(*four):
            outcome, reason = UNCLEAR, NO_NOISE
        judged.append((outcome, {**_columns(change, limits.cost, level), "reason": reason}))
    return judged


def refusal(a: Entry, b: Entry, *, relative: bool) -> tuple[str, str] | None:
    """Return the verdict on a time that cannot be compared, and the reason; None if it can."""
    measured = [has_values(side, relative=relative) for side in (a, b)]
    if not any(measured):
        return LEVEL, "no time above zero"
    if not all(measured):
        return UNCLEAR, "no time above zero on one side"
    different = [] if relative else [name for group, name in _MACHINE if _differs(group, name, a, b)]
    if different:
        return NOT_COMPARABLE, f"absolute times of two machines ({', '.join(different)})"
    return None


def _kind(pair: Pair) -> str:
    """Return the class of cells whose times differ between processes in a similar way."""
    seconds = [value for entry in (pair.a, pair.b) if (value := entry.value) is not None and value > 0]
    return class_of_time(pair.a.quantity, statistics.geometric_mean(seconds) if seconds else math.inf)


def _assumed(old: Run, new: Run, pair: Pair) -> float:
    """Return the deviation between processes to assume where none was measured.

    It is larger if full softmax differs more from its second copy, or from itself in other processes of the run.
    """
    if len(pair.a.single_runs) > 1 or len(pair.b.single_runs) > 1:
        return _ASSUMED
    seen = max(_ASSUMED, old.noise(pair.a), new.noise(pair.b), old.spread(pair.a), new.spread(pair.b))
    return math.hypot(seen, error_within(pair.a), error_within(pair.b))


def _columns(change: Change, threshold: float, level: float) -> dict[str, Any]:
    if math.isnan(change.error):
        return {"change": growth(change.value)}
    names = {"change": change.value, "low": change.low, "high": change.high}
    names["detectable"] = change.detectable(math.log1p(threshold), level)
    return {name: growth(log) for name, log in names.items()}


def _differs(group: str, name: str, a: Entry, b: Entry) -> bool:
    """Whether a fact about the machine differs between any two of the runs."""
    values = [getattr(run.row.provenance, group).get(name) for run in (*a.single_runs, *b.single_runs)]
    return any(value != values[0] for value in values)


def _witnesses(old: Run, a: Entry, relative_changes: dict[tuple[str, str], Change]) -> list[Change]:
    """Return the changes of the other layers relative to full softmax that were timed under the same conditions."""
    keys = [(entry.place.identity, entry.quantity) for entry in old.group(a) if not entry.is_baseline]
    return [relative_changes[key] for key in keys if key in relative_changes]
