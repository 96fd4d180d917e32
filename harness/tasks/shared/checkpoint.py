"""The model of a training run that is scored: the last one, or the one with the lowest validation perplexity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from vocabench.impls.options import Choice

LAST, BEST = "last", "best"
CHECKPOINT = Choice(LAST, (LAST, BEST), "the model that is scored: the last one, or the best one on validation")

State = TypeVar("State")


class Checkpoint(Generic[State]):
    """The evaluation whose model is scored, and the state that restores this model.

    Attributes:
        point: Point of the curve; empty before the first evaluation.
    """

    def __init__(self, which: str) -> None:
        self.point: Mapping[str, float] = {}
        self._which, self._current = which, False
        self._state: State | None = None

    def offer(self, point: Mapping[str, float], state: Callable[[], State]) -> None:
        """Record an evaluation. `state` returns the state of its model and is called only if it may be needed."""
        self._current = self._which == LAST or not self.point or point["perplexity"] < self.point["perplexity"]
        if self._current:
            self.point = point
            self._state = state() if self._which == BEST else None

    def state(self) -> State | None:
        """Return the state to restore, or None if the present model is the one to score."""
        return None if self._current else self._state
