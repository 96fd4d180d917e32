"""Regression verdicts between two runs, cell by cell: pure functions over stored rows.

A verdict needs more than a difference. For times the change's interval has to lie wholly beyond the threshold and
beyond the noise floor that full softmax, timed against a second copy of itself, shows in the same runs. The intervals
of all times compared hold together (Bonferroni), so that a hundred cells raise no more false alarms than one.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness.compare.matching import Entry, Run, Scores, agrees, identify, measured
from vocabench.harness.measure.stats import Interval, shift
from vocabench.harness.quantities import LOWER, NOT_JUDGED
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.store import Row

WORSE, MISSING, UNCLEAR, NOT_COMPARABLE, BETTER, NEW, SAME = VERDICTS = (
    "worse", "missing", "unclear", "not comparable", "better", "new", "same",
)  # fmt: skip
SAME_OR_BETTER = "same or better"

RATIO = "x"  # the unit of speed-ups, and of one framework's figure over another's

_MACHINE = (("machine", "cpu"), ("machine", "cores"), ("framework", "threads"), ("framework", "device_name"))
_OTHERWISE_DEFINED = "measured by another definition: see docs/measuring.md"
_SEVERAL = 3  # runs of a side, from which on their own differences are the measure of what is usual
_NO_NOISE = f"absolute time with no measure of its noise: {_SEVERAL} runs a side would be one"
_RUNS_LEVEL = 0.8  # of three runs a side the most extreme difference is left out
_LARGEST = 700.0  # log of what a float still holds
_PAGES = 4 * 2**20  # bytes by which peaks of the same code differ, as allocators take memory in pieces


@dataclass(frozen=True)
class Limits:
    """
    Attributes:
        cost: Relative change of a time or of memory up to which it counts as the same.
        quality: Likewise of perplexity, error rates and all else.
        level: With this probability all intervals of times hold at once.
    """

    cost: float = 0.05
    quality: float = 0.01
    level: float = 0.95


@dataclass(frozen=True)
class Finding:
    """One comparison.

    Attributes:
        cell: What was measured, for people.
        quantity: Empty for a cell as a whole.
        before, after: The figure on both sides in `unit`; of a time paired with full softmax the speed-up over it.
        change: Relative change of the quantity, above 0 where it grew; of a paired time, full softmax's taken as fixed.
        low, high: Its interval, where there is one.
        bar: What the change had to exceed.
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
    """What became of each cell of `before`, worst first.

    Args:
        before, after: The last row of each cell of a run; of several runs of the same code, of each.
    """
    old, new = Run.of(before), Run.of(after)
    pairs = [(entry, new.entries.get(key)) for key, entry in old.entries.items() if key[1] not in NOT_JUDGED]
    level = _level(limits, sum(other is not None and _is_timed(entry, other) for entry, other in pairs))
    found = [_cell(identity, row, new) for identity, row in old.rows.items()]
    for entry, other in pairs:
        if other is not None:
            found.append(_quantity(old, new, entry, other, limits, level))
        elif measured(new.rows.get(identify(entry.cell))):
            found.append(_finding(MISSING, entry, None))
    unknown = [row for identity, row in new.rows.items() if identity not in old.rows and measured(row)]
    found += [Finding(NEW, Cell.from_json(row["cell"]).label) for row in unknown]
    return _sorted(each for each in found if each is not None)


def between_frameworks(
    before: Sequence[Row], after: Sequence[Row], first: str, second: str, limits: Limits
) -> list[Finding]:
    """Whether `first` became worse next to `second`: their ratio in one run against that in the other.

    Both frameworks' figures of one run come from one machine, so that the runs' machines may differ.
    """
    old, new = Run.of(before), Run.of(after)
    quadruples: list[tuple[Entry, Entry, Entry, Entry]] = []
    for (_, quantity), entry in old.entries.items():
        if entry.cell.framework == first and quantity not in NOT_JUDGED | {"agreement_error"}:
            keys = [(identify(entry.cell, framework=name), quantity) for name in (first, second)]
            four = [run.entries[key] for run in (old, new) for key in keys if key in run.entries]
            if len(four) == 4 and all(each.value for each in four):
                quadruples.append((four[0], four[1], four[2], four[3]))
    # Two intervals a comparison, which have to hold both.
    level = _level(limits, 2 * sum(_is_timed(*four) for four in quadruples))
    return _sorted(_next_to(old, new, four, limits, level) for four in quadruples)


def verdict(found: Sequence[Finding], *, strict: bool) -> str:
    """`WORSE`, `SAME_OR_BETTER`, or `NOT_COMPARABLE` where nothing could be judged; `strict` takes what is missing for
    worse."""
    verdicts = {each.verdict for each in found}
    if WORSE in verdicts or (strict and MISSING in verdicts):
        return WORSE
    return SAME_OR_BETTER if verdicts & {UNCLEAR, BETTER, SAME} else NOT_COMPARABLE


def _level(limits: Limits, comparisons: int) -> float:
    return 1 - (1 - limits.level) / max(1, comparisons)


def _is_timed(*entries: Entry) -> bool:
    return all(each.is_time and len(each.logs) > 1 for each in entries)


def _cell(identity: str, row: Row, new: Run) -> Finding | None:
    """What can be said of a cell as a whole: it is gone, failed, or agrees no longer."""
    cell = Cell.from_json(row["cell"])
    other = new.rows.get(identity)
    if other is None:
        reason = new.nearly(cell)
        return Finding(NOT_COMPARABLE if reason else MISSING, cell.label, reason=reason)
    if not measured(other):
        reason = f"{other['status']}: {other.get('message', '')}"
        return Finding(WORSE if measured(row) else NOT_COMPARABLE, cell.label, "status", reason=reason)
    if not measured(row):
        return Finding(BETTER, cell.label, "status", reason=f"was {row['status']}")
    if agrees(row) and not agrees(other):
        lines = other.get("agreement", {}).get("disagreements") or ["no longer agrees with the definition"]
        return Finding(WORSE, cell.label, "agreement", reason=str(lines[0]))
    if agrees(other) and not agrees(row):
        return Finding(BETTER, cell.label, "agreement", reason="agrees again")
    return None


def _quantity(old: Run, new: Run, a: Entry, b: Entry, limits: Limits, level: float) -> Finding:
    if a.quantity == "agreement_error":
        # Its size says nothing: whether it is within the tolerance has been compared with the cell.
        return _finding(SAME, a, b, reason="agreement is judged as a whole")
    if a.value is None or b.value is None:
        what = SAME if a.value == b.value else WORSE if b.value is None else BETTER
        return _finding(what, a, b, reason="not finite")
    if a.definition != b.definition:
        return _finding(NOT_COMPARABLE, a, b, reason=_OTHERWISE_DEFINED)
    if _is_timed(a, b):
        alone = a.is_baseline or not (a.rounds and b.rounds)
        return (_alone if alone else _paired)(old, new, a, b, limits, level)
    if a.is_time:
        return _finding(UNCLEAR, a, b, reason="one sample: no interval")
    return _single(a, b, limits)


def _paired(old: Run, new: Run, a: Entry, b: Entry, limits: Limits, level: float) -> Finding:
    """A time by full softmax's, which was taken turn by turn with it: a slower machine slows both.

    What differs from process to process, such as where memory lies, is no noise within one. Several runs a side show
    it; of fewer, the spread of full softmax's own time over the processes of a run stands for it.
    """
    # log(full softmax / this) falls where this becomes slower
    slower = _between_runs(shift(b.rounds, a.rounds, level), _centres(b, "rounds"), _centres(a, "rounds"))
    noise = max(old.noise(a), new.noise(b))
    if _few(a, b):
        noise = max(noise, old.spread(a), new.spread(b))
    what, bar, reason = _judge(slower, limits.cost, noise)
    before, after = (math.exp(min(statistics.median(each.rounds), _LARGEST)) for each in (a, b))
    return _finding(
        what,
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
    """A time that nothing was paired with; full softmax's own, against what other layers say of it.

    A slower machine slows all layers. Where others were timed turn by turn with full softmax, most of them must have
    moved the other way next to it before its own time counts as changed.
    """
    different = [name for room, name in _MACHINE if _differs(room, name, a, b)]
    if different:
        reason = f"absolute times of two machines ({', '.join(different)})"
        return _finding(NOT_COMPARABLE, a, b, reason=reason)
    slower = _apart(a, b, level)
    noise = max(old.noise(a), new.noise(b), old.spread(a), new.spread(b))
    what, bar, reason = _judge(slower, limits.cost, noise)
    witnesses = _witnesses(old, new, a, level) if a.is_baseline and what in (WORSE, BETTER) else []
    if witnesses and statistics.median(each.low if what == WORSE else -each.high for each in witnesses) <= 0:
        what, reason = UNCLEAR, "all layers moved alike: the machine, or code that they share"
    if what in (WORSE, BETTER) and not a.rounds and _few(a, b):
        what, reason = UNCLEAR, _NO_NOISE
    return _finding(what, a, b, reason=reason or "absolute time", **_relative_change(slower), bar=math.expm1(bar))


def _differs(room: str, name: str, a: Entry, b: Entry) -> bool:
    return any(each.provenance(room, name) != a.provenance(room, name) for each in (*a.each_run, *b.each_run))


def _few(*entries: Entry) -> bool:
    return min(len(each.each_run) for each in entries) < _SEVERAL


def _between_runs(pooled: Interval, first: Sequence[float], second: Sequence[float]) -> Interval:
    """The interval over all rounds, as wide as that over the centres of runs where it is the narrower.

    This one can but widen what holds already, and of few runs one may be odd: it needs no level as high.
    """
    if max(len(first), len(second)) == 1:
        return pooled
    runs = shift(first, second, _RUNS_LEVEL)
    return Interval(pooled.value, min(pooled.low, runs.low), max(pooled.high, runs.high))


def _apart(first: Entry, second: Entry, level: float) -> Interval:
    """How far the second's time lies above the first's, as a log."""
    return _between_runs(shift(first.logs, second.logs, level), _centres(first, "logs"), _centres(second, "logs"))


def _centres(entry: Entry, name: str) -> list[float]:
    return [statistics.median(getattr(each, name)) for each in entry.each_run if getattr(each, name)]


def _witnesses(old: Run, new: Run, a: Entry, level: float) -> list[Interval]:
    """For each other layer timed with full softmax in both runs, how much slower full softmax became next to it."""
    pairs = [(each, new.entries.get((identify(each.cell), each.quantity))) for each in old.group(a)]
    return [
        shift(each.rounds, other.rounds, level)
        for each, other in pairs
        if not each.is_baseline and other is not None and each.rounds and other.rounds
    ]


def _judge(slower: Interval, threshold: float, noise: float) -> tuple[str, float, str]:
    """The verdict on the log of a change for the worse, what it had to exceed, and why it is unclear."""
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
    """Memory and quality, which the same seeds give again but for rounding. Where both sides have a score a sample, a
    difference must be more than chance as well."""
    assert a.value is not None
    assert b.value is not None
    least, reason = _least(a, limits), ""
    if abs(b.value - a.value) <= max(least * abs(a.value), _PAGES if a.unit == "B" else 0.0):
        return _finding(SAME, a, b, bar=least)
    what = WORSE if (b.value > a.value) == (a.better == LOWER) else BETTER
    interval: dict[str, Any] = {}
    if a.scores.pair_with(b.scores) and _scores_samples(a) and _scores_samples(b):
        found = _paired_difference(b.scores, a.scores)
        interval = {name: _relative(a.value, a.value + getattr(found, name)) for name in ("low", "high")}
        if found.low <= 0 <= found.high:
            what, reason = UNCLEAR, "the difference of the same samples may be chance"
    return _finding(what, a, b, bar=least, reason=reason, **interval)


def _least(entry: Entry, limits: Limits) -> float:
    return limits.cost if entry.unit == "B" else limits.quality


def _scores_samples(entry: Entry) -> bool:
    """Whether the figure is what the scores of several samples come to."""
    values_S, sizes_S = entry.scores
    found = float(values_S.sum() / sizes_S.sum())
    return len(sizes_S) > 1 and math.isclose(found, entry.value or 0.0, rel_tol=1e-6, abs_tol=1e-12)


def _paired_difference(first: Scores, second: Scores) -> Interval:
    from vocabench.harness.metrics.bootstrap import differences

    (found,) = differences(first.values_S[:, None], second.values_S[:, None], sizes_S=first.sizes_S)
    return found.interval


def _next_to(old: Run, new: Run, four: tuple[Entry, Entry, Entry, Entry], limits: Limits, level: float) -> Finding:
    """One framework's figure over another's, each measured in processes of its own: what differs between processes
    does not cancel, and is noise as of a time that nothing was paired with."""
    a1, a2, b1, b2 = four
    before, after = (first.value / second.value for first, second in ((a1, a2), (b1, b2)))  # type: ignore[operator]
    more: dict[str, Any] = {"reason": ""}
    if len({each.definition for each in four}) > 1:
        what, more["reason"] = NOT_COMPARABLE, _OTHERWISE_DEFINED
    elif _is_timed(*four):
        was, now = _apart(a2, a1, level), _apart(b2, b1, level)
        slower = Interval(now.value - was.value, now.low - was.high, now.high - was.low)
        sides = (old, a1), (old, a2), (new, b1), (new, b2)
        noise = max(max(run.noise(each), run.spread(each)) for run, each in sides)
        what, bar, more["reason"] = _judge(slower, limits.cost, noise)
        if what in (WORSE, BETTER) and _few(*four):
            what, more["reason"] = UNCLEAR, _NO_NOISE
        more |= _relative_change(slower) | {"bar": math.expm1(bar)}
    elif a1.is_time:
        what, more["reason"] = UNCLEAR, "one sample: no interval"
    else:
        more["bar"] = least = _least(a1, limits)
        moved = abs(after - before) > least * abs(before)
        what = SAME if not moved else WORSE if (after > before) == (a1.better == LOWER) else BETTER
    label = f"{a1.cell.label}, next to {a2.cell.framework}"
    more = {"change": _relative(before, after), **more}
    return dataclasses.replace(_finding(what, a1, b1), cell=label, before=before, after=after, unit=RATIO, **more)


def _finding(what: str, a: Entry, b: Entry | None, **more: Any) -> Finding:
    after = b.value if b is not None else None
    fields = {"before": a.value, "after": after, "unit": a.unit, "change": _relative(a.value, after), **more}
    return Finding(what, a.cell.label, a.quantity, **fields)


def _relative_change(slower: Interval) -> dict[str, float]:
    names = {"change": slower.value, "low": slower.low, "high": slower.high}
    return {name: math.expm1(min(each, _LARGEST)) for name, each in names.items()}


def _relative(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or before == 0 else (after - before) / abs(before)


def _sorted(found: Iterable[Finding]) -> list[Finding]:
    """Worst first; within a verdict the largest change."""
    return sorted(found, key=lambda each: (VERDICTS.index(each.verdict), -abs(each.change or 0.0)))
