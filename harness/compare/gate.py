"""Regression verdicts between two runs, cell by cell: pure functions over stored rows.

A difference alone is no verdict. For times, the interval of the change must lie entirely beyond the threshold and
beyond the noise floor, which is what full softmax shows in the same runs when timed against a second copy of itself.
The intervals of all compared times hold simultaneously (Bonferroni), so that a hundred cells raise no more false alarms
than one.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness.compare.matching import Entry, Run, Scores, identify
from vocabench.harness.measure.stats import Interval, shift
from vocabench.harness.quantities import LOWER, NOT_JUDGED
from vocabench.harness.run.rows import Row

WORSE, MISSING, UNCLEAR, NOT_COMPARABLE, BETTER, NEW, SAME = VERDICTS = (
    "worse", "missing", "unclear", "not comparable", "better", "new", "same",
)  # fmt: skip
SAME_OR_BETTER = "same or better"

RATIO = "x"  # unit of speedups and of ratios between frameworks

_MACHINE = (("machine", "cpu"), ("machine", "cores"), ("framework", "threads"), ("framework", "device_name"))
_OTHERWISE_DEFINED = "measured by another definition: see docs/measuring.md"
_SEVERAL = 3  # with at least this many runs per side, the differences between runs measure the noise
_NO_NOISE = f"absolute time with no measure of its noise: {_SEVERAL} runs a side would be one"
_RUNS_LEVEL = 0.8  # with three runs per side, this leaves out the most extreme difference
_LARGEST = 700.0  # largest logarithm whose exponential is a finite float
_PAGES = 4 * 2**20  # bytes by which peaks of the same code differ, because allocators request memory in blocks


@dataclass(frozen=True)
class Limits:
    """Thresholds of a comparison.

    Attributes:
        cost: Largest relative change of a time or of memory that counts as the same.
        quality: Largest relative change of perplexity, error rates and other figures that counts as the same.
        level: Probability that the intervals of all times hold simultaneously.
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
        low, high: Interval of the change, if there is one.
        bar: Change that had to be exceeded.
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
    bar: float | None = None
    reason: str = ""


def compare(before: Sequence[Row], after: Sequence[Row], limits: Limits) -> list[Finding]:
    """Return what became of each cell of `before`, worst first.

    Args:
        before, after: Last row of each cell, of one run or of several runs of the same code.
    """
    old, new = Run.of(before), Run.of(after)
    pairs = [(entry, new.entries.get(key)) for key, entry in old.entries.items() if key[1] not in NOT_JUDGED]
    level = _level(limits, sum(other is not None and _is_timed(entry, other) for entry, other in pairs))
    findings = [_cell(identity, row, new) for identity, row in old.rows.items()]
    for entry, other in pairs:
        if other is not None:
            findings.append(_quantity(old, new, entry, other, limits, level))
        elif (row := new.rows.get(identify(entry.cell))) and row.is_measured:
            findings.append(_finding(MISSING, entry, None))
    unknown = [row for identity, row in new.rows.items() if identity not in old.rows and row.is_measured]
    findings += [Finding(NEW, row.cell.label) for row in unknown]
    return _sorted(finding for finding in findings if finding is not None)


def between_frameworks(
    before: Sequence[Row], after: Sequence[Row], first: str, second: str, limits: Limits
) -> list[Finding]:
    """Compare the ratio of two frameworks' figures in one run with that in another.

    The figures of one run come from one machine, so the machines of the runs may differ.

    Args:
        first, second: Frameworks; the verdict is "worse" if `first` became worse relative to `second`.
    """
    old, new = Run.of(before), Run.of(after)
    quadruples: list[tuple[Entry, Entry, Entry, Entry]] = []
    for (_, quantity), entry in old.entries.items():
        if entry.cell.framework == first and quantity not in NOT_JUDGED | {"agreement_error"}:
            keys = [(identify(entry.cell, framework=name), quantity) for name in (first, second)]
            four = [run.entries[key] for run in (old, new) for key in keys if key in run.entries]
            if len(four) == 4 and all(member.value for member in four):
                quadruples.append((four[0], four[1], four[2], four[3]))
    # Each comparison needs two intervals, which must hold simultaneously.
    level = _level(limits, 2 * sum(_is_timed(*four) for four in quadruples))
    return _sorted(_next_to(old, new, four, limits, level) for four in quadruples)


def verdict(findings: Sequence[Finding], *, strict: bool) -> str:
    """Return `WORSE`, `SAME_OR_BETTER`, or `NOT_COMPARABLE` if nothing could be judged.

    Args:
        strict: Whether missing cells and quantities count as worse.
    """
    verdicts = {finding.verdict for finding in findings}
    if WORSE in verdicts or (strict and MISSING in verdicts):
        return WORSE
    return SAME_OR_BETTER if verdicts & {UNCLEAR, BETTER, SAME} else NOT_COMPARABLE


def _level(limits: Limits, comparisons: int) -> float:
    return 1 - (1 - limits.level) / max(1, comparisons)


def _is_timed(*entries: Entry) -> bool:
    return all(entry.is_time and len(entry.logs) > 1 for entry in entries)


def _cell(identity: str, row: Row, new: Run) -> Finding | None:
    """Return a finding about the cell as a whole: it is gone, its status changed, or its agreement changed."""
    label, other = row.cell.label, new.rows.get(identity)
    if other is None:
        reason = new.nearly(row.cell)
        return Finding(NOT_COMPARABLE if reason else MISSING, label, reason=reason)
    if not other.is_measured:
        reason = f"{other.status}: {other.message}"
        return Finding(WORSE if row.is_measured else NOT_COMPARABLE, label, "status", reason=reason)
    if not row.is_measured:
        return Finding(BETTER, label, "status", reason=f"was {row.status}")
    if row.agrees and not other.agrees:
        lines = other.disagreements or ["no longer agrees with the definition"]
        return Finding(WORSE, label, "agreement", reason=lines[0])
    if other.agrees and not row.agrees:
        return Finding(BETTER, label, "agreement", reason="agrees again")
    return None


def _quantity(old: Run, new: Run, a: Entry, b: Entry, limits: Limits, level: float) -> Finding:
    if a.quantity == "agreement_error":
        # The size of an error within the tolerance is irrelevant; `_cell` compares the verdicts.
        return _finding(SAME, a, b, reason="agreement is judged as a whole")
    if a.value is None or b.value is None:
        outcome = SAME if a.value == b.value else WORSE if b.value is None else BETTER
        return _finding(outcome, a, b, reason="not finite")
    if a.definition != b.definition:
        return _finding(NOT_COMPARABLE, a, b, reason=_OTHERWISE_DEFINED)
    if _is_timed(a, b):
        alone = a.is_baseline or not (a.rounds and b.rounds)
        return (_alone if alone else _paired)(old, new, a, b, limits, level)
    if a.is_time:
        return _finding(UNCLEAR, a, b, reason="one sample: no interval")
    return _single(a, b, limits)


def _paired(old: Run, new: Run, a: Entry, b: Entry, limits: Limits, level: float) -> Finding:
    """Judge a time relative to full softmax's, measured in alternation with it: a slower machine slows both.

    Noise between processes, such as that of memory placement, does not appear within a process. Several runs per side
    measure it. With fewer, the spread of full softmax's own time over the processes of a run is the estimate.
    """
    # log(full softmax / this) decreases as this becomes slower.
    slower = _between_runs(shift(b.rounds, a.rounds, level), _centres(b, "rounds"), _centres(a, "rounds"))
    noise = max(old.noise(a), new.noise(b))
    if _few(a, b):
        noise = max(noise, old.spread(a), new.spread(b))
    outcome, bar, reason = _judge(slower, limits.cost, noise)
    before, after = (math.exp(min(statistics.median(entry.rounds), _LARGEST)) for entry in (a, b))
    return _finding(
        outcome,
        a,
        b,
        before=before,
        after=after,
        unit=RATIO,
        reason=reason,
        **_relative_change(slower),
        bar=math.expm1(bar),
    )


def _alone(old: Run, new: Run, a: Entry, b: Entry, limits: Limits, level: float) -> Finding:
    """Judge a time that was not paired with another, and full softmax's own time.

    A slower machine slows all layers. Full softmax's time therefore counts as changed only if most of the layers timed
    in alternation with it moved the other way relative to it.
    """
    different = [name for group, name in _MACHINE if _differs(group, name, a, b)]
    if different:
        reason = f"absolute times of two machines ({', '.join(different)})"
        return _finding(NOT_COMPARABLE, a, b, reason=reason)
    slower = _apart(a, b, level)
    noise = max(old.noise(a), new.noise(b), old.spread(a), new.spread(b))
    outcome, bar, reason = _judge(slower, limits.cost, noise)
    witnesses = _witnesses(old, new, a, level) if a.is_baseline and outcome in (WORSE, BETTER) else []
    if witnesses and statistics.median(w.low if outcome == WORSE else -w.high for w in witnesses) <= 0:
        outcome, reason = UNCLEAR, "all layers moved alike: the machine, or code that they share"
    if outcome in (WORSE, BETTER) and not a.rounds and _few(a, b):
        outcome, reason = UNCLEAR, _NO_NOISE
    return _finding(outcome, a, b, reason=reason or "absolute time", **_relative_change(slower), bar=math.expm1(bar))


def _differs(group: str, name: str, a: Entry, b: Entry) -> bool:
    """Whether a fact about the machine differs between any two of the runs."""
    values = [getattr(run.row.provenance, group).get(name) for run in (*a.single_runs, *b.single_runs)]
    return any(value != values[0] for value in values)


def _few(*entries: Entry) -> bool:
    return min(len(entry.single_runs) for entry in entries) < _SEVERAL


def _between_runs(pooled: Interval, first: Sequence[float], second: Sequence[float]) -> Interval:
    """Widen the interval over all rounds to include the interval over the centres of the runs.

    The latter has a lower level: it can only widen an interval that holds already, and one of few runs may be an
    outlier.
    """
    if max(len(first), len(second)) == 1:
        return pooled
    runs = shift(first, second, _RUNS_LEVEL)
    return Interval(pooled.value, min(pooled.low, runs.low), max(pooled.high, runs.high))


def _apart(first: Entry, second: Entry, level: float) -> Interval:
    """Return the logarithm of the second time divided by the first, with its interval."""
    return _between_runs(shift(first.logs, second.logs, level), _centres(first, "logs"), _centres(second, "logs"))


def _centres(entry: Entry, name: str) -> list[float]:
    return [statistics.median(values) for run in entry.single_runs if (values := getattr(run, name))]


def _witnesses(old: Run, new: Run, a: Entry, level: float) -> list[Interval]:
    """Return how much slower full softmax became relative to each other layer timed with it in both runs."""
    pairs = [(entry, new.entries.get((identify(entry.cell), entry.quantity))) for entry in old.group(a)]
    return [
        shift(before.rounds, after.rounds, level)
        for before, after in pairs
        if not before.is_baseline and after is not None and before.rounds and after.rounds
    ]


def _judge(slower: Interval, threshold: float, noise: float) -> tuple[str, float, str]:
    """Return the verdict on the logarithm of a slowdown, what it had to exceed, and why it is unclear."""
    least = math.log1p(threshold)
    bar = max(least, noise)
    if slower.low > bar:
        return WORSE, bar, ""
    if slower.high < -bar:
        return BETTER, bar, ""
    if -least <= slower.low and slower.high <= least:
        return SAME, bar, ""
    if slower.low > least or slower.high < -least:
        return UNCLEAR, bar, f"within the noise of {100 * math.expm1(noise):.0f} %"
    return UNCLEAR, bar, "the interval crosses the threshold; more rounds narrow it"


def _single(a: Entry, b: Entry, limits: Limits) -> Finding:
    """Judge memory or quality, which the same seeds reproduce up to rounding.

    If both sides have a score for each sample, a difference must also exceed chance.
    """
    assert a.value is not None
    assert b.value is not None
    least, reason = _least(a, limits), ""
    if abs(b.value - a.value) <= max(least * abs(a.value), _PAGES if a.unit == "B" else 0.0):
        return _finding(SAME, a, b, bar=least)
    outcome = WORSE if (b.value > a.value) == (a.better == LOWER) else BETTER
    interval: dict[str, Any] = {}
    if a.scores.pair_with(b.scores) and _scores_samples(a) and _scores_samples(b):
        difference = _paired_difference(b.scores, a.scores)
        interval = {name: _relative(a.value, a.value + getattr(difference, name)) for name in ("low", "high")}
        if difference.low <= 0 <= difference.high:
            outcome, reason = UNCLEAR, "the difference of the same samples may be chance"
    return _finding(outcome, a, b, bar=least, reason=reason, **interval)


def _least(entry: Entry, limits: Limits) -> float:
    return limits.cost if entry.unit == "B" else limits.quality


def _scores_samples(entry: Entry) -> bool:
    """Whether the figure is the mean of several samples' scores."""
    values_S, sizes_S = entry.scores
    mean = float(values_S.sum() / sizes_S.sum())
    return len(sizes_S) > 1 and math.isclose(mean, entry.value or 0.0, rel_tol=1e-6, abs_tol=1e-12)


def _paired_difference(first: Scores, second: Scores) -> Interval:
    from vocabench.harness.metrics.bootstrap import differences

    (difference,) = differences(first.values_S[:, None], second.values_S[:, None], sizes_S=first.sizes_S)
    return difference.interval


def _next_to(old: Run, new: Run, four: tuple[Entry, Entry, Entry, Entry], limits: Limits, level: float) -> Finding:
    """Judge the ratio of two frameworks' figures.

    The two are measured in different processes, so the noise between processes does not cancel: the figures are treated
    like unpaired times.
    """
    a1, a2, b1, b2 = four
    before, after = (first.value / second.value for first, second in ((a1, a2), (b1, b2)))  # type: ignore[operator]
    more: dict[str, Any] = {"reason": ""}
    if len({entry.definition for entry in four}) > 1:
        outcome, more["reason"] = NOT_COMPARABLE, _OTHERWISE_DEFINED
    elif _is_timed(*four):
        was, now = _apart(a2, a1, level), _apart(b2, b1, level)
        slower = Interval(now.value - was.value, now.low - was.high, now.high - was.low)
        sides = (old, a1), (old, a2), (new, b1), (new, b2)
        noise = max(max(run.noise(entry), run.spread(entry)) for run, entry in sides)
        outcome, bar, more["reason"] = _judge(slower, limits.cost, noise)
        if outcome in (WORSE, BETTER) and _few(*four):
            outcome, more["reason"] = UNCLEAR, _NO_NOISE
        more |= _relative_change(slower) | {"bar": math.expm1(bar)}
    elif a1.is_time:
        outcome, more["reason"] = UNCLEAR, "one sample: no interval"
    else:
        more["bar"] = least = _least(a1, limits)
        moved = abs(after - before) > least * abs(before)
        outcome = SAME if not moved else WORSE if (after > before) == (a1.better == LOWER) else BETTER
    label = f"{a1.cell.label}, next to {a2.cell.framework}"
    more = {"change": _relative(before, after), **more}
    return dataclasses.replace(_finding(outcome, a1, b1), cell=label, before=before, after=after, unit=RATIO, **more)


def _finding(outcome: str, a: Entry, b: Entry | None, **more: Any) -> Finding:
    after = b.value if b is not None else None
    fields = {"before": a.value, "after": after, "unit": a.unit, "change": _relative(a.value, after), **more}
    return Finding(outcome, a.cell.label, a.quantity, **fields)


def _relative_change(slower: Interval) -> dict[str, float]:
    names = {"change": slower.value, "low": slower.low, "high": slower.high}
    return {name: math.expm1(min(log, _LARGEST)) for name, log in names.items()}


def _relative(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or before == 0 else (after - before) / abs(before)


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by verdict, worst first, then by the size of the change, largest first."""
    return sorted(findings, key=lambda finding: (VERDICTS.index(finding.verdict), -abs(finding.change or 0.0)))
