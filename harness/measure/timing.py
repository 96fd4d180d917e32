"""Paired timing: two pieces of work alternate in the same process, so that a slow machine slows both."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Protocol

from vocabench.harness.measure.memory import clear_pages, fresh_pages
from vocabench.harness.measure.stats import Interval, location, paired_ratio

# Versions of the definition of a time. Rows store theirs, and times of different versions are not compared. In version
# 5 either side may start, and both decode with weights of the same kind. Version 6 is the same with several calls in
# flight on an accelerator. In versions 3 and 4 the baseline started, and decoded with other weights.
DEFINITION, IN_FLIGHT_DEFINITION = 5, 6

_CALLS_IN_FLIGHT = 8

Work = Callable[[], object]  # does one piece of work and returns once the device has finished

_FRESH = 1024  # pages (4 MiB) above which a call counts as having allocated fresh memory
_TRIES = 4  # attempts at a call without fresh memory; once all fail, no further call is repeated
_HELPS = 0.5  # share of the fresh memory of an attempt that the next one may need for a further one to be worthwhile
_PATIENCE = 2.0  # seconds of attempts at a call after which none is repeated any more

ROUNDS_OF_ONE_PROCESS = 6  # the fewest rounds whose ranks give a 95 % interval

_SHORTEST_SAMPLE = 0.02  # seconds; shorter work is called several times per round
_LEAST_TURNS = 3  # for several pieces: a mean of single calls would include interrupted ones


@dataclass(frozen=True)
class Timed:
    """Seconds for one piece of work.

    Attributes:
        seconds: Centre and 95 % interval.
        samples: Seconds of the median call in each round.
        turns: Number of calls per round, each next to a call of the other side.
        first_call: Seconds of the very first call, which traces and compiles.
    """

    seconds: Interval
    samples: list[float]
    turns: int
    first_call: float


@dataclass(frozen=True)
class Paired:
    """Times of two sides, and the baseline's time divided by the other's: above 1, the other is faster."""

    baseline: Timed
    other: Timed
    ratio: Interval
    ratios: list[float]


def calls_in_flight(device: str) -> int:
    """Return the number of training steps to launch before synchronizing with the device.

    A training loop does not synchronize after each step. On an accelerator, synchronizing takes the host longer than a
    fast layer takes.
    """
    return 1 if device == "cpu" else _CALLS_IN_FLIGHT


def call_seconds(work: Work) -> float:
    """Measure one call of `work`. If it is the first one, the time includes compilation."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Clock(Protocol):
    """How the calls of a measurement are timed."""

    def now(self) -> float:
        """Return the seconds since some moment."""
        ...

    def call(self, work: Work) -> float:
        """Measure one call of `work`, including compilation and page faults."""
        ...

    def seconds(self, works: Sequence[Work]) -> list[float]:
        """Measure one typical call of each piece of work, in order."""
        ...


class Steady:
    """The clock of this process, which times calls that allocate no fresh memory.

    A process that keeps freed memory still needs fresh pages now and then, when a small array has taken part of a
    large one's former place. The system zeroes these pages, which can make a call ten times as slow. That is not
    typical of a training step, so the call is repeated once enough zeroed pages are available. Some frameworks allocate
    large arrays anew in each call, which is typical of them: their calls are not repeated for long.
    """

    def __init__(self) -> None:
        self._tries = _TRIES

    def now(self) -> float:
        return time.perf_counter()

    def call(self, work: Work) -> float:
        return call_seconds(work)

    def seconds(self, works: Sequence[Work]) -> list[float]:
        """Measure one call of each piece of work, in order. All are repeated together if one needed fresh memory."""
        seconds: list[float] = []
        most = math.inf  # fresh pages of an attempt that still helps
        began = time.perf_counter()
        for attempt in range(self._tries):
            before = fresh_pages()
            seconds = [call_seconds(work) for work in works]
            fresh = fresh_pages() - before
            if fresh < _FRESH:
                return seconds
            clear_pages(fresh)
            if fresh > most or (attempt and time.perf_counter() - began > _PATIENCE):
                break
            most = _HELPS * fresh
        self._tries = 1
        return seconds


def paired(
    baseline: Sequence[Work],
    other: Sequence[Work],
    *,
    rounds: int,
    budget_seconds: float,
    least_rounds: int = ROUNDS_OF_ONE_PROCESS,
    calls: int = 1,
    other_first: bool = False,
    clock: Clock | None = None,
) -> Paired:
    """Time two sides in alternation. Each side has one or more pieces of work, and its time is their mean.

    Each piece is called once to compile and again to warm up. Every round then takes one sample of both sides. It
    consists of as many turns as the slower side needs to fill the sample. In each turn both sides are called once, and
    every call is timed by itself. The sample is the median call, so that a call interrupted by the scheduler counts for
    little.

    The sides strictly alternate. Work that was called twice in a row would find its own data in the caches. For the
    same reason no piece is called again before the others were.

    The first call of a turn follows the harness's own work, the second one follows the first. The starting side
    therefore changes from round to round. Where a round has only one or two turns, the work takes so long that this
    does not matter, but a side that is called twice in a row would.

    Args:
        baseline: Pieces of work of one side.
        other: Pieces of work of the other side, as many.
        budget_seconds: Time after which no round starts beyond `least_rounds`.
        calls: Number of times that a piece does its work per call. The returned times are for one of them.
        other_first: Whether `other` is called before `baseline` in the first round.
        clock: Times the calls; None for that of this process. All decisions follow from its times.
    """
    sides, clock = (baseline, other), clock or Steady()
    first = [_total_seconds(works, clock) / len(works) for works in sides]
    turns = min(_turns(works, clock) for works in sides)
    samples: tuple[list[float], list[float]] = ([], [])
    deadline = clock.now() + budget_seconds
    while len(samples[0]) < rounds and (len(samples[0]) < least_rounds or clock.now() <= deadline):
        alternates = turns >= _LEAST_TURNS and len(samples[0]) % 2 == 1
        order = (1, 0) if other_first != alternates else (0, 1)
        for side, sample in zip(order, _round([sides[side] for side in order], turns, clock), strict=True):
            samples[side].append(sample / calls)
    timed = [
        Timed(location(side_samples), side_samples, turns, first_call)
        for side_samples, first_call in zip(samples, first, strict=True)
    ]
    ratio, ratios = paired_ratio(*samples)
    return Paired(timed[0], timed[1], ratio, ratios)


def _turns(works: Sequence[Work], clock: Clock) -> int:
    """Return the number of calls that fill a sample, by the fastest of several, as a call may be interrupted."""
    least = 1 if len(works) == 1 else _LEAST_TURNS
    deadline = clock.now() + _SHORTEST_SAMPLE
    shortest = _total_seconds(works, clock)
    while clock.now() < deadline:
        shortest = min(shortest, _total_seconds(works, clock))
    return max(least, min(1000, round(_SHORTEST_SAMPLE / max(shortest, 1e-9))))


def _total_seconds(works: Sequence[Work], clock: Clock) -> float:
    return sum(clock.call(work) for work in works)


def _round(sides: Sequence[Sequence[Work]], turns: int, clock: Clock) -> list[float]:
    """Return one sample of each side: the mean over its pieces of the median call."""
    seconds: list[list[list[float]]] = [[[] for _ in works] for works in sides]  # by side, piece and turn
    for _ in range(turns):
        for piece in range(len(sides[0])):
            pair = clock.seconds([works[piece] for works in sides])
            for side, call in zip(seconds, pair, strict=True):
                side[piece].append(call)
    return [fmean(median(calls) for calls in side) for side in seconds]
