"""The learning curve of a training run: its evaluations, when training ends, and which model is scored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import numpy as np

from vocabench.impls.options import Choice, Number

LAST, BEST = "last", "best"

SETTINGS: dict[str, Choice | Number] = {
    "evaluations": Number(1, 1, 10**6, "evaluations per epoch on the validation split"),
    "checkpoint": Choice(LAST, (LAST, BEST), "the model that is scored: the last one, or the best one on validation"),
    "patience": Number(
        0, 0, 10**6, "evaluations in a row without a lower validation perplexity that end training; 0 for no limit"
    ),
}

State = TypeVar("State")


class LearningCurve(Generic[State]):
    """Evaluations on the validation split during training, and the state of the model that is scored.

    Attributes:
        points: One point per evaluation, with at least its step, training seconds, training loss and perplexity.
        seconds: Training time so far, without evaluation.
        total: Number of steps, unless training ends early.
    """

    def __init__(self, settings: Mapping[str, Any], state: Callable[[], State]) -> None:
        """Take the settings of a task, and a function that returns what restores the present model."""
        self.points: list[dict[str, float]] = []
        self.seconds, self.total = 0.0, 0
        self._settings, self._take_state = settings, state
        self._due: set[int] = set()
        self._losses: list[Any] = []
        self._started = 0.0
        self._best = 0  # index of the point with the lowest perplexity
        self._state: State | None = None

    def start(self, steps_per_epoch: int, updates: int = 0) -> None:
        """Plan the evaluations, of which the last one is after the last step, and start the clock.

        Args:
            steps_per_epoch: Number of steps in an epoch.
            updates: Number of steps after which training ends; 0 for no limit.
        """
        epochs, evaluations = self._settings["epochs"], self._settings["evaluations"]
        self.total = min(steps_per_epoch * epochs, updates or steps_per_epoch * epochs)
        self._due = {self.total} | {
            round(steps_per_epoch * (epoch + part / evaluations))
            for epoch in range(epochs)
            for part in range(1, evaluations + 1)
        }
        self._started = time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock for work that is not training."""
        self.seconds += time.perf_counter() - self._started
        yield
        self._started = time.perf_counter()

    def add_loss(self, loss: Any) -> None:
        """Add the training loss of a step, which may be a scalar of a framework that is still being computed."""
        self._losses.append(loss)

    def is_due(self, step: int) -> bool:
        """Return whether an evaluation follows `step`, counted from 1."""
        return step in self._due

    def evaluate(self, step: int, scores: Callable[[], Mapping[str, float]]) -> None:
        """Add a point with the scores on the validation split, and keep the model if it may be the one to score.

        Raises:
            FloatingPointError: The mean training loss since the last evaluation is not finite.
        """
        with self.paused():
            mean_loss = float(np.mean([float(loss) for loss in self._losses]))
            if not np.isfinite(mean_loss):
                raise FloatingPointError(f"training loss is {mean_loss} at step {step}")
            self._losses = []
            point = {"step": step, "seconds": self.seconds, "train_loss": mean_loss, **scores()}
            self.points.append(point)
            if len(self.points) == 1 or point["perplexity"] < self.points[self._best]["perplexity"]:
                self._best = len(self.points) - 1
                self._state = self._take_state() if self._settings["checkpoint"] == BEST else None

    @property
    def has_ended(self) -> bool:
        """Whether as many evaluations as `patience` says have not improved on the best one."""
        return 0 < self._settings["patience"] <= len(self.points) - 1 - self._best

    @property
    def scored(self) -> Mapping[str, float]:
        """The point whose model is scored."""
        return self.points[self._best if self._settings["checkpoint"] == BEST else -1]

    @property
    def state_to_restore(self) -> State | None:
        """The state of the model that is scored; None if the present model is the one."""
        return None if self.scored is self.points[-1] else self._state

    def loss_line(self, step: int) -> str:
        """Return a line of progress. This waits for a loss that is still being computed."""
        return f"step {step}/{self.total} loss {float(self._losses[-1]):.3f}"

    def evaluation_line(self, step: int) -> str:
        return f"step {step}/{self.total} validation perplexity {self.points[-1]['perplexity']:.2f}"

    def detail(self) -> dict[str, Any]:
        """Return the entries for the row."""
        return {
            "validation_perplexity": self.scored["perplexity"],
            "scored_step": self.scored["step"],
            "curve": self.points,
        }
