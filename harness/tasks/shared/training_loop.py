"""Training over batches of similar length, for models that map a sample to a text, and its results."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers
from vocabench.harness.measure.memory import DEFINITION, peak_bytes
from vocabench.harness.run.rows import Measurement
from vocabench.harness.tasks.shared import batching
from vocabench.harness.tasks.shared.data import Progress
from vocabench.harness.tasks.shared.learning_curve import LearningCurve
from vocabench.harness.tasks.shared.sequences import Sequences
from vocabench.harness.tasks.shared.spec import parameters
from vocabench.impls.spec import Arrays


class Training:
    """One training run.

    Attributes:
        sequences: The samples and the model that is trained. Those of "valid" are scored.
        training_P: Indices of the training samples, in any order.
        curve: Learning curve, with the model that is scored.
    """

    def __init__(self, sequences: Sequences, training_P: NDArray[np.int64]) -> None:
        self.sequences, self.training_P = sequences, training_P
        self.cell, self.settings, self.model = sequences.cell, sequences.settings, sequences.model
        self.step_seconds: list[float] = []
        self.shapes: set[tuple[int, ...]] = set()
        self.peak_bytes: dict[tuple[int, ...], int] = {}
        self.curve: LearningCurve[Arrays] = LearningCurve(self.settings, lambda: self.model.parameters())

    def run(self, progress: Progress) -> None:
        """Train.

        Raises:
            FloatingPointError: The loss is not finite.
        """
        curve, rng = self.curve, np.random.default_rng([self.cell.seed, 12])
        sizes = self.sequences.sizes("train", self.training_P)
        batches = (
            (epoch, chosen_B)
            for epoch in range(self.settings["epochs"])
            for chosen_B in batching.shuffled_batches(*sizes, self.sequences.batch, rng)
        )
        curve.start(len(self.training_P) // self.sequences.batch)
        for step, (epoch, chosen_B) in enumerate(batches, 1):
            curve.add_loss(self._step(epoch, self.training_P[chosen_B]))
            if step % 10 == 0:
                progress(curve.loss_line(step))
            if curve.is_due(step):
                curve.evaluate(step, lambda: {"perplexity": self.sequences.perplexity("valid")})
                progress(curve.evaluation_line(step))
                if curve.has_ended:
                    break
        if (params := curve.state_to_restore) is not None:
            self.model.load(params)

    def _step(self, epoch: int, numbers_B: NDArray[np.int64]) -> float:
        """Take one training step.

        The first step of each shape may compile. The second one returns memory to the system first, and its peak memory
        is measured. All others are timed.
        """
        started = time.perf_counter()
        batch = self.sequences.training_batch(epoch, numbers_B)
        shape = tuple(array.shape[1] for array in batch if array.ndim > 1)
        losses: list[float] = []

        def step() -> None:
            losses.append(float(self.model.step(*batch)))
            self.model.synchronize()

        if shape not in self.shapes:
            self.shapes.add(shape)
            step()
        elif shape not in self.peak_bytes:
            self.peak_bytes[shape] = peak_bytes(self.cell.framework, self.cell.device, step) or 0
        else:
            step()
            self.step_seconds.append(time.perf_counter() - started)
        return losses[0]

    def measurements(self) -> list[Measurement]:
        """Return the measurements of the run, with the perplexity first."""
        split = self.settings["split"]
        value = self.curve.scored["perplexity"] if split == "valid" else self.sequences.perplexity(split)
        detail: dict[str, Any] = {
            "split": split,
            **self.curve.detail(),
            "formulation": layers.form_label(self.cell.framework, self.model.spec, self.cell.device),
        }
        found = [
            Measurement("perplexity", value, detail=detail),
            Measurement("train_seconds", self.curve.seconds, [self.curve.seconds]),
            parameters(self.model.spec),
        ]
        if any(self.peak_bytes.values()):
            largest, peak = max(self.peak_bytes.items(), key=lambda item: item[1])
            counted = {"batch": self.sequences.batch, "shape": largest, "counting": DEFINITION}
            found.append(Measurement("step_peak_bytes", peak, [peak], detail=counted))
        if self.step_seconds:
            shapes = {"batch": self.sequences.batch, "shapes": sorted(self.shapes)}
            found.append(
                Measurement("step_seconds", float(np.median(self.step_seconds)), self.step_seconds, detail=shapes)
            )
        return found
