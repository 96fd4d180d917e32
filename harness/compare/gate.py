"""Regression verdicts between two runs, cell by cell: pure functions over stored rows.

A difference alone is no verdict. Times are judged by how much the same code differs between runs or processes, quality
by how much it differs between seeds. Within each of these families, verdicts hold for all cells simultaneously, and the
families share the level of the comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vocabench.harness.compare.finding import (
    BETTER,
    LEVEL,
    MISSING,
    NEW,
    NOT_COMPARABLE,
    OTHERWISE_DEFINED,
    RATIO,
    UNCLEAR,
    VERDICTS,
    WORSE,
    Finding,
    Limits,
    finding,
    relabelled,
    relative,
)
from vocabench.harness.compare.matching import Entry, Run, identify, trains
from vocabench.harness.compare.seeds import Seeds, judge_seeds
from vocabench.harness.compare.times import (
    Pair,
    absolute_times,
    ratios_of_frameworks,
    refusal,
    relative_times,
)
from vocabench.harness.quantities import LOWER, NOT_JUDGED
from vocabench.harness.run.rows import Row

__all__ = [
    "BETTER", "LEVEL", "LEVEL_OR_BETTER", "MISSING", "NEW", "NOT_COMPARABLE", "RATIO", "UNCLEAR", "VERDICTS", "WORSE",
    "Finding", "Limits", "between_frameworks", "compare", "verdict",
]  # fmt: skip

LEVEL_OR_BETTER = "level or better"

_AGREEMENT = "agreement_error"
_PAGES = 4 * 2**20  # bytes by which peaks of the same code differ, because allocators request memory in blocks

_Four = tuple[Entry, Entry, Entry, Entry]


def compare(before: Sequence[Row], after: Sequence[Row], limits: Limits) -> list[Finding]:
    """Return what became of each cell of `before`, worst first.

    Args:
        before, after: Last row of each cell, of one run or of several runs of the same code.
    """
    old, new = Run.of(before), Run.of(after)
    findings = [_cell(identity, row, new) for identity, row in old.rows.items()]
    pairs: dict[bool, list[Pair]] = {True: [], False: []}  # by whether they are relative
    for key, a in old.entries.items():
        if key[1] in NOT_JUDGED:
            continue
        b = new.entries.get(key)
        if b is None:
            row = new.rows.get(key[0])
            findings.append(finding(MISSING, a, None) if row and row.is_measured else None)
        elif (alone := _alone(a, b, limits)) is not None:
            findings.append(alone)
        elif a.is_time:
            pair = Pair(key, a, b)
            pairs[pair.is_relative].append(pair)
    seeds = _by_seed(old, new)
    level = _level(limits, pairs[True], pairs[False], seeds)
    relative_findings, changes = relative_times(old, new, pairs[True], limits, level)
    findings += relative_findings
    findings += absolute_times(old, new, pairs[False], limits, level, changes)
    figures = [figure for *_, figure in seeds]
    for (a, b, _), (outcome, fields) in zip(seeds, judge_seeds(figures, limits.quality, level), strict=True):
        findings.append(finding(outcome, a, b, **fields))
    unknown = [row for identity, row in new.rows.items() if identity not in old.rows and row.is_measured]
    findings += [Finding(NEW, row.cell.label) for row in unknown]
    return _sorted(found for found in findings if found is not None)


def between_frameworks(
    before: Sequence[Row], after: Sequence[Row], first: str, second: str, limits: Limits
) -> list[Finding]:
    """Compare the ratio of two frameworks' figures in one run with that in another.

    The figures of one run come from one machine, so the machines of the runs may differ.

    Args:
        first, second: Frameworks; the verdict is "worse" if `first` became worse relative to `second`.
    """
    old, new = Run.of(before), Run.of(after)
    findings: list[Finding] = []
    timed: list[_Four] = []
    trained: dict[tuple[str, str], list[_Four]] = {}
    for key, entry in old.entries.items():
        if entry.cell.framework != first or entry.quantity in NOT_JUDGED | {_AGREEMENT}:
            continue
        four = _four(old, new, entry, first, second)
        if four is None:
            continue
        if len({member.definition for member in four}) > 1:
            findings.append(_next_to(four, NOT_COMPARABLE, reason=OTHERWISE_DEFINED))
        elif entry.is_time:
            timed.append(four)
        elif _is_trained(entry):
            trained.setdefault((entry.place.without_seed, key[1]), []).append(four)
        else:
            least = limits.cost if entry.unit == "B" else limits.quality
            findings.append(_next_to(four, _by_threshold(entry, *_ratios(four), least)))
    seeds = [Seeds(key[1], fours[0][0].better, *_ratios_by_seed(fours)) for key, fours in trained.items()]
    level = _level(limits, timed, seeds)
    for four, (outcome, fields) in zip(timed, ratios_of_frameworks(timed, limits, level), strict=True):
        findings.append(_next_to(four, outcome, **fields))
    judged = judge_seeds(seeds, limits.quality, level)
    for fours, (outcome, fields) in zip(trained.values(), judged, strict=True):
        findings.append(_next_to(fours[0], outcome, **fields))
    return _sorted(findings)


def verdict(findings: Sequence[Finding], *, strict: bool, fail_on_unclear: bool = False) -> str:
    """Return `WORSE`, `UNCLEAR`, `LEVEL_OR_BETTER`, or `NOT_COMPARABLE` if nothing could be judged.

    Args:
        strict: Whether missing cells and quantities count as worse.
        fail_on_unclear: Whether anything unclear makes the comparison unclear.
    """
    verdicts = {found.verdict for found in findings}
    if WORSE in verdicts or (strict and MISSING in verdicts):
        return WORSE
    if fail_on_unclear and UNCLEAR in verdicts:
        return UNCLEAR
    return LEVEL_OR_BETTER if verdicts & {UNCLEAR, BETTER, LEVEL} else NOT_COMPARABLE


def _level(limits: Limits, *families: Sequence[Any]) -> float:
    """Return the level of each family of figures, such that all of them hold the level of the comparison."""
    return 1 - (1 - limits.level) / max(1, sum(map(bool, families)))


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


def _alone(a: Entry, b: Entry, limits: Limits) -> Finding | None:
    """Return the finding on a figure that is judged without others; None for times and for trained figures."""
    if a.quantity == _AGREEMENT:
        # The size of an error within the tolerance is irrelevant; `_cell` compares the verdicts.
        return finding(LEVEL, a, b, reason="agreement is judged as a whole")
    if a.value is None or b.value is None:
        outcome = LEVEL if a.value == b.value else WORSE if b.value is None else BETTER
        return finding(outcome, a, b, reason="not finite")
    if a.definition != b.definition:
        return finding(NOT_COMPARABLE, a, b, reason=OTHERWISE_DEFINED)
    if a.is_time:
        refused = refusal(a, b, relative=not a.is_baseline and a.is_paired and b.is_paired)
        return None if refused is None else finding(refused[0], a, b, reason=refused[1])
    if _is_trained(a):
        return None  # judged with the other seeds
    if a.unit == "B":
        return finding(_by_threshold(a, a.value, b.value, limits.cost, _PAGES), a, b)
    return finding(_by_threshold(a, a.value, b.value, limits.quality), a, b)


def _is_trained(entry: Entry) -> bool:
    """Whether the figure depends on training, whose seeds differ. Others are reproduced up to rounding."""
    return entry.unit != "B" and trains(entry.cell.task)


def _by_threshold(entry: Entry, before: float, after: float, least: float, absolute: float = 0.0) -> str:
    if abs(after - before) <= max(least * abs(before), absolute):
        return LEVEL
    return WORSE if (after > before) == (entry.better == LOWER) else BETTER


def _by_seed(old: Run, new: Run) -> list[tuple[Entry, Entry, Seeds]]:
    """Return the figures of cells that differ only in their seed, with the first entry of each side."""
    before, after = _entries_by_figure(old), _entries_by_figure(new)
    figures = []
    for key, a in before.items():
        b = after.get(key)
        if b and a[0].definition == b[0].definition:
            values = [{entry.cell.seed: entry.value or 0.0 for entry in side} for side in (a, b)]
            figures.append((a[0], b[0], Seeds(key[1], a[0].better, values[0], values[1])))
    return [figure for figure in figures if figure[2].is_comparable]


def _entries_by_figure(run: Run) -> dict[tuple[str, str], list[Entry]]:
    """Return the entries of trained figures that are finite, by what cells of different seeds have in common."""
    by_figure: dict[tuple[str, str], list[Entry]] = {}
    for entry in run.entries.values():
        is_judged = not entry.is_time and entry.quantity not in NOT_JUDGED | {_AGREEMENT}
        if is_judged and _is_trained(entry) and entry.value is not None:
            by_figure.setdefault((entry.place.without_seed, entry.quantity), []).append(entry)
    return by_figure


def _four(old: Run, new: Run, entry: Entry, first: str, second: str) -> _Four | None:
    """Return the figure of both frameworks before and after; None if one is missing or 0."""
    keys = [(identify(entry.cell, framework=name), entry.quantity) for name in (first, second)]
    four = [run.entries[key] for run in (old, new) for key in keys if key in run.entries]
    if len(four) < 4 or not all(member.value for member in four):
        return None
    return four[0], four[1], four[2], four[3]


def _ratios(four: _Four) -> tuple[float, float]:
    """Return the figure of the first framework divided by that of the second, before and after."""
    a1, a2, b1, b2 = (member.value or 0.0 for member in four)
    return a1 / a2, b1 / b2


def _ratios_by_seed(fours: Iterable[_Four]) -> tuple[dict[int, float], dict[int, float]]:
    before, after = {}, {}
    for four in fours:
        before[four[0].cell.seed], after[four[0].cell.seed] = _ratios(four)
    return before, after


def _next_to(four: _Four, outcome: str, **more: Any) -> Finding:
    a1, a2, b1, _ = four
    before, after = _ratios(four)
    fields = {"before": before, "after": after, "unit": RATIO, "change": relative(before, after), **more}
    return relabelled(finding(outcome, a1, b1, **fields), f"{a1.cell.label}, next to {a2.cell.framework}")


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by verdict, worst first, then by the size of the change, largest first."""
    return sorted(findings, key=lambda found: (VERDICTS.index(found.verdict), -abs(found.change or 0.0)))
