"""Paired timing: two pieces of work in the same process, turn by turn, so that what slows the machine slows both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from vocabench.harness.measure.memory import clear_pages, fresh_pages
from vocabench.harness.measure.stats import Interval, location, paired_ratio

# What a time stands for: rows keep it, and none is compared with one of another. In 3 the sides strictly alternate;
# rows without it called short work many times in a row, at first single rows too. In 4 so do pieces of several calls,
# between which an accelerator is not waited for.
DEFINITION, IN_FLIGHT_DEFINITION = 3, 4

_IN_FLIGHT = 8  # calls

Work = Callable[[], object]  # does one piece of work and returns when the device is done

_FRESH = 1024  # pages given to calls that count as having been given memory anew: 4 MiB
# To find calls that were not. Where all fail, memory is given to each call, and none is repeated from then on.
_TRIES = 4

_SHORTEST_SAMPLE = 0.02  # seconds of calls; shorter work takes several turns within a round
_LEAST_TURNS = 3  # of each of several pieces: the mean of single calls has those that were interrupted


@dataclass(frozen=True)
class Timed:
    """Seconds for one piece of work.

    Attributes:
        seconds: Centre and 95 % interval.
        samples: Seconds of the median call, one a round.
        turns: Its turns within a round, each next to one of the other.
        first_call: Seconds of the very first call, which traces and compiles.
    """

    seconds: Interval
    samples: list[float]
    turns: int
    first_call: float


@dataclass(frozen=True)
class Paired:
    baseline: Timed
    other: Timed
    ratio: Interval  # baseline's time over other's: above 1, other is faster
    ratios: list[float]


def calls_in_flight(device: str) -> int:
    """Steps of training that are asked for before the device is waited for. A training loop waits for none, and to be
    told that an accelerator is done takes the host longer than a fast layer takes."""
    return 1 if device == "cpu" else _IN_FLIGHT


def call_seconds(work: Work) -> float:
    """Seconds of one call of `work`: of the first, which compiles, if none came before."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Steady:
    """Calls in a process that keeps what it frees.

    Now and then an array comes to lie where none lay before, as a small one has taken a piece of its old place, and the
    system clears every page of it: that call may take ten times as long. It is not what a step takes, and is repeated,
    once as many pages are there as it was given.
    """

    def __init__(self) -> None:
        self._tries = _TRIES

    def seconds(self, works: Sequence[Work]) -> list[float]:
        """Of each, called one after the other; together again if memory was given to them."""
        seconds: list[float] = []
        for _ in range(self._tries):
            before = fresh_pages()
            seconds = [call_seconds(work) for work in works]
            given = fresh_pages() - before
            if given < _FRESH:
                return seconds
            clear_pages(given)
        self._tries = 1
        return seconds


def paired(
    baseline: Sequence[Work], other: Sequence[Work], *, rounds: int, budget_seconds: float, calls: int = 1
) -> Paired:
    """Time two pieces of work in alternation, or one such pair after the other, by the mean of the pairs.

    Each is called once to compile and again to warm up. Then every round takes one sample of both sides, of as many
    turns as fill it with the longer work: a turn calls both once, each call timed alone, and the median call is the
    sample. So a call that the scheduler interrupted counts for little, where in a sum of calls it would count in full.
    The two strictly alternate: none is ever called twice in a row, which would find in caches what it has just read,
    and of several pieces none again before the others were. Rounds end early, but not before six (the fewest with a
    95 % interval), when the budget is spent.

    Args:
        baseline: The pieces of one side.
        other: Those of the other side, as many.
        calls: How many times a piece does its work; what is returned is of one of them.
    """
    sides = (baseline, other)
    first = [_seconds_of_all(works) / len(works) for works in sides]
    turns = min(_turns(works) for works in sides)
    samples: tuple[list[float], list[float]] = ([], [])
    deadline, steady = time.perf_counter() + budget_seconds, Steady()
    while len(samples[0]) < rounds and (len(samples[0]) < 6 or time.perf_counter() <= deadline):
        for of_side, sample in zip(samples, _round(sides, turns, steady), strict=True):
            of_side.append(sample / calls)
    timed = [Timed(location(s), s, turns, f) for s, f in zip(samples, first, strict=True)]
    ratio, ratios = paired_ratio(*samples)
    return Paired(timed[0], timed[1], ratio, ratios)


def _turns(works: Sequence[Work]) -> int:
    """Calls of each that fill a round, by the shortest of some: a single one may have been interrupted."""
    least = 1 if len(works) == 1 else _LEAST_TURNS
    deadline = time.perf_counter() + _SHORTEST_SAMPLE
    shortest = _seconds_of_all(works)
    while time.perf_counter() < deadline:
        shortest = min(shortest, _seconds_of_all(works))
    return max(least, min(1000, round(_SHORTEST_SAMPLE / max(shortest, 1e-9))))


def _seconds_of_all(works: Sequence[Work]) -> float:
    return sum(call_seconds(work) for work in works)


def _round(sides: Sequence[Sequence[Work]], turns: int, steady: Steady) -> list[float]:
    """Seconds of the median call of both sides, the mean of their pieces."""
    calls: list[list[list[float]]] = [[[] for _ in works] for works in sides]
    for _ in range(turns):
        for piece in range(len(sides[0])):
            for of_side, seconds in zip(calls, steady.seconds([works[piece] for works in sides]), strict=True):
                of_side[piece].append(seconds)
    return [fmean(median(of_piece) for of_piece in of_side) for of_side in calls]
