"""Paired timing: two pieces of work in the same process, turn by turn, so that what slows the machine slows both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from harness.stats import Interval, location, paired_ratio

Work = Callable[[], object]  # does one piece of work and returns when the device is done

_SHORTEST_SAMPLE = 0.02  # seconds of calls; shorter work is repeated within a round


@dataclass(frozen=True)
class Timed:
    """Seconds for one piece of work.

    Attributes:
        seconds: Centre and 95 % interval.
        samples: Seconds of the median call, one a round.
        repeats: Calls within a round.
        first_call: Seconds of the very first call, which traces and compiles.
    """

    seconds: Interval
    samples: list[float]
    repeats: int
    first_call: float


@dataclass(frozen=True)
class Paired:
    baseline: Timed
    other: Timed
    ratio: Interval  # baseline's time over other's: above 1, other is faster
    ratios: list[float]


def call_seconds(work: Work) -> float:
    """Seconds of one call of `work`: of the first, which compiles, if none came before."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def paired(baseline: Work, other: Work, *, rounds: int, budget_seconds: float) -> Paired:
    """Time two pieces of work in alternation.

    Each is called once to compile and again to warm up. Then every round takes one sample of each: short work is
    called several times, turn by turn with the other, each call timed alone, and the median call is the sample. So a
    call that the scheduler interrupted counts for little, where in a sum of calls it would count in full. Which goes
    first changes from turn to turn. Rounds end early, but not before six (the fewest with a 95 % interval), when the
    budget is spent.
    """
    works = (baseline, other)
    first = [call_seconds(work) for work in works]
    wanted = [_repeats(work) for work in works]
    turns = min(wanted)
    each_turn = [round(repeats / turns) for repeats in wanted]
    samples: tuple[list[float], list[float]] = ([], [])
    deadline = time.perf_counter() + budget_seconds
    for number in range(rounds):
        if number >= 6 and time.perf_counter() > deadline:
            break
        for which, sample in enumerate(_round(works, turns, each_turn, number % 2)):
            samples[which].append(sample)
    timed = [Timed(location(s), s, turns * calls, f) for s, calls, f in zip(samples, each_turn, first, strict=True)]
    ratio, ratios = paired_ratio(*samples)
    return Paired(timed[0], timed[1], ratio, ratios)


def _repeats(work: Work) -> int:
    """Calls that fill a round, by the shortest of some: a single one may have been interrupted."""
    deadline = time.perf_counter() + _SHORTEST_SAMPLE
    shortest = call_seconds(work)
    while time.perf_counter() < deadline:
        shortest = min(shortest, call_seconds(work))
    return max(1, min(1000, round(_SHORTEST_SAMPLE / max(shortest, 1e-9))))


def _round(works: Sequence[Work], turns: int, each_turn: Sequence[int], first: int) -> list[float]:
    """Seconds of the median call of both."""
    calls: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        for which in (0, 1) if (turn + first) % 2 == 0 else (1, 0):
            calls[which].extend(call_seconds(works[which]) for _ in range(each_turn[which]))
    return [median(each) for each in calls]
