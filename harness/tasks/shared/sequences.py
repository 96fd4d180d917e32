"""Samples of a model that maps each to a text: their batches, their perplexity, and the decoding of their texts."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.run.cells import Cell
from vocabench.harness.tasks.shared import batching
from vocabench.harness.tasks.shared.data import Progress
from vocabench.impls.models.recognizer import Recognizer
from vocabench.impls.models.summarizer import Summarizer

Batch = tuple[NDArray, ...]  # as the model takes it; the targets are the last array, with padding below 0


class Sequences(ABC):
    """The samples of a model. A sample is identified by its split and its index in the split.

    Attributes:
        model: The model, trained or not.
        scored: Indices of the scored samples by split, at least for the setting `split`.
        batch: Number of samples of a batch.
        decoded_shapes: Shapes of the inputs that have been decoded.
    """

    model: Summarizer | Recognizer

    def __init__(self, cell: Cell, scored: dict[str, NDArray[np.int64]], batch: int) -> None:
        self.cell, self.settings = cell, cell.settings
        self.scored, self.batch = scored, batch
        self.decoded_shapes: set[tuple[int, ...]] = set()

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
