"""Paired timing: two pieces of work in the same process, turn by turn, so that what slows the machine slows both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.stats import Interval, location, paired_ratio

Work = Callable[[], object]  # does one piece of work and returns when the device is done

_SHORTEST_SAMPLE = 0.02  # seconds; shorter work is repeated within a sample, or the clock and the scheduler would show


@dataclass(frozen=True)
class Timed:
    """Seconds for one piece of work.

    Attributes:
        seconds: Centre and 95 % interval.
        samples: Seconds a call, one a round.
        repeats: Calls within a sample.
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


def first_call(work: Work) -> float:
    """Seconds of the first call of `work`."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def paired(baseline: Work, other: Work, *, rounds: int, budget_seconds: float) -> Paired:
    """Time two pieces of work in alternation.

    Each is called once to compile and once more to warm up. Then every round takes one sample of each, and which goes
    first changes from round to round. Rounds end early, but not before six (the fewest with a 95 % interval), when the
    budget is spent.
    """
    works = (baseline, other)
    first = [first_call(work) for work in works]
    repeats = [_repeats(first_call(work)) for work in works]
    samples: tuple[list[float], list[float]] = ([], [])
    deadline = time.perf_counter() + budget_seconds
    for turn in range(rounds):
        if turn >= 6 and time.perf_counter() > deadline:
            break
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            samples[which].append(_sample(works[which], repeats[which]))
    timed = [Timed(location(s), s, r, f) for s, r, f in zip(samples, repeats, first, strict=True)]
    ratio, ratios = paired_ratio(*samples)
    return Paired(timed[0], timed[1], ratio, ratios)


def _repeats(seconds: float) -> int:
    return max(1, min(1000, round(_SHORTEST_SAMPLE / max(seconds, 1e-9))))


def _sample(work: Work, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats
