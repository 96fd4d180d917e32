"""Training over batches of similar length, for models that map a sample to a text, and its results."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers
from vocabench.harness.measure.memory import DEFINITION, peak_bytes
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.tasks.shared import batching
from vocabench.harness.tasks.shared.learning_curve import LearningCurve
from vocabench.harness.tasks.shared.spec import parameters
from vocabench.impls.models.recognizer import Recognizer
from vocabench.impls.models.summarizer import Summarizer
from vocabench.impls.spec import Arrays

Progress = Callable[[str], None]
Batch = tuple[NDArray, ...]  # as the model takes it; the targets are the last array, with padding below 0


class Training(ABC):
    """One training run. A sample is identified by its split and its index in the split.

    Attributes:
        model: The model that is trained.
        training_P: Indices of the training samples, in any order.
        scored: Indices of the scored samples by split, at least for "valid" and the setting `split`.
        batch: Number of samples of a batch.
        curve: Learning curve, with the model that is scored.
    """

    model: Summarizer | Recognizer

    def __init__(self, cell: Cell, training_P: NDArray[np.int64], scored: dict[str, NDArray[np.int64]]) -> None:
        self.cell, self.settings = cell, cell.settings
        self.training_P, self.scored = training_P, scored
        self.batch = min(cell.settings["batch"], len(training_P))
        self.step_seconds: list[float] = []
        self.shapes: set[tuple[int, ...]] = set()
        self.peak_bytes: dict[tuple[int, ...], int] = {}
        self.decoded_shapes: set[tuple[int, ...]] = set()
        self.curve: LearningCurve[Arrays] = LearningCurve(cell.settings, lambda: self.model.parameters())

    @abstractmethod
    def sizes(self, split: str, numbers_P: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the padded width of the input and the length of the text of each sample, both (P,)."""

    @abstractmethod
    def padded(self, split: str, numbers_B: NDArray[np.int64]) -> Batch:
        """Return samples as the model takes them."""

    def training_batch(self, epoch: int, numbers_B: NDArray[np.int64]) -> Batch:
        """Return samples for training in `epoch`, counted from 0."""
        return self.padded("train", numbers_B)

    @abstractmethod
    def inputs(self, split: str, numbers_B: NDArray[np.int64]) -> Batch:
        """Return the inputs of `search`. Frameworks compile for the shape of the first array."""

    @abstractmethod
    def search(self, *inputs: NDArray) -> list[str]:
        """Return the text that beam search finds for each sample."""

    def run(self, progress: Progress) -> None:
        """Train.

        Raises:
            FloatingPointError: The loss is not finite.
        """
        curve, rng = self.curve, np.random.default_rng([self.cell.seed, 12])
        sizes = self.sizes("train", self.training_P)
        batches = (
            (epoch, chosen_B)
            for epoch in range(self.settings["epochs"])
            for chosen_B in batching.shuffled_batches(*sizes, self.batch, rng)
        )
        curve.start(len(self.training_P) // self.batch)
        for step, (epoch, chosen_B) in enumerate(batches, 1):
            curve.add_loss(self._step(epoch, self.training_P[chosen_B]))
            if step % 10 == 0:
                progress(curve.loss_line(step))
            if curve.is_due(step):
                curve.evaluate(step, lambda: {"perplexity": self.perplexity("valid")})
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
        batch = self.training_batch(epoch, numbers_B)
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

    def perplexity(self, split: str) -> float:
        """Return the perplexity per word or unit of the training texts, including the ends."""
        nll, words = 0.0, 0
        for numbers_B in self.batches(split):
            batch = self.padded(split, numbers_B)
            nll += self.model.evaluate(*batch)
            words += int((batch[-1] >= 0).sum())
        return float(np.exp(nll / words))

    def batches(self, split: str) -> Iterable[NDArray[np.int64]]:
        """Return the scored samples in batches of similar size."""
        numbers_P = self.scored[split]
        for chosen_B in batching.sorted_batches(*self.sizes(split, numbers_P), self.batch):
            yield numbers_P[chosen_B]

    def measurements(self) -> list[Measurement]:
        """Return the measurements of the run, with the perplexity first."""
        split = self.settings["split"]
        value = self.curve.scored["perplexity"] if split == "valid" else self.perplexity(split)
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
            counted = {"batch": self.batch, "shape": largest, "counting": DEFINITION}
            found.append(Measurement("step_peak_bytes", peak, [peak], detail=counted))
        if self.step_seconds:
            shapes = {"batch": self.batch, "shapes": sorted(self.shapes)}
            found.append(
                Measurement("step_seconds", float(np.median(self.step_seconds)), self.step_seconds, detail=shapes)
            )
        return found

    def decoded(
        self, batches: Iterable[NDArray[np.int64]], progress: Progress
    ) -> Iterator[tuple[NDArray[np.int64], list[str], float]]:
        """Yield the batches of the scored split, with their decoded texts and the seconds of decoding.

        The first batch of each shape is decoded once before, because that may compile.
        """
        split, shapes = self.settings["split"], self.decoded_shapes
        for numbers_B in batches:
            inputs = self.inputs(split, numbers_B)
            if inputs[0].shape not in shapes:
                shapes.add(inputs[0].shape)
                self.search(*inputs)
            started = time.perf_counter()
            texts = self.search(*inputs)
            seconds = time.perf_counter() - started
            progress(f"decoded a batch of {len(numbers_B)} of {len(self.scored[split]):,}")
            yield numbers_B, texts, seconds
