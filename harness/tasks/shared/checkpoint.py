"""Which model of a training run is scored: the last one, or that of the lowest validation perplexity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from vocabench.impls.options import Choice

LAST, BEST = "last", "best"
CHECKPOINT = Choice(LAST, (LAST, BEST), "the model that is scored: the last, or that of the best validation")

State = TypeVar("State")


class Checkpoint(Generic[State]):
    """The evaluation whose model is scored, and what brings that model back.

    Attributes:
        point: Of the curve; empty before the first evaluation.
    """

    def __init__(self, which: str) -> None:
        self.point: Mapping[str, float] = {}
        self._which, self._current = which, False
        self._state: State | None = None

    def offer(self, point: Mapping[str, float], state: Callable[[], State]) -> None:
        """An evaluation, and the `state` of its model, which is asked for where it may be wanted again."""
        self._current = self._which == LAST or not self.point or point["perplexity"] < self.point["perplexity"]
        if self._current:
            self.point = point
            self._state = state() if self._which == BEST else None

    def state(self) -> State | None:
        """What to bring back; None where the model as it stands is the one."""
        return None if self._current else self._state
