"""Pairs of a summarizer: padded batches, and summaries by beam search."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.pairs.encoded_pairs import EncodedPairs
from vocabench.harness.datasets.text.tokenization import UNK
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.tasks.shared import batching, sequences
from vocabench.harness.tasks.shared.data import Progress
from vocabench.impls.models.decoding import beam_search
from vocabench.impls.models.summarizer import PADDING, Summarizer


class Summaries(sequences.Sequences):
    """Pairs and a summarizer."""

    model: Summarizer

    def __init__(
        self,
        cell: Cell,
        model: Summarizer,
        data: EncodedPairs,
        scored: dict[str, NDArray[np.int64]],
        training_P: NDArray[np.int64] | None = None,
        *,
        batch: int,
    ) -> None:
        super().__init__(cell, scored, batch)
        self.model, self.data = model, data
        used = scored if training_P is None else scored | {"train": training_P}
        self.source_widths, self.summary_widths = (
            batching.widths(
                np.concatenate([side.splits[split].lengths_P[pairs_P] for split, pairs_P in used.items()]),
                cell.settings["paddings"],
            )
            for side in (data.sources, data.summaries)
        )

    @property
    def without(self) -> list[int]:
        """The words that a summary cannot have."""
        words = [self.data.end] if self.settings["fixed_length"] else []
        return [*words, self.data.summaries.words.index(UNK)] if self.settings["scoring"] == "rush2015" else words

    def sizes(self, split: str, numbers_P: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lengths_P = self.data.sources.splits[split].lengths_P[numbers_P]
        widths_P = batching.width_of(lengths_P, self.source_widths)
        return widths_P, self.data.summaries.splits[split].lengths_P[numbers_P]

    def padded(self, split: str, numbers_B: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        _, lengths_B = self.sizes(split, numbers_B)
        summary_width = int(batching.width_of(lengths_B.max(), self.summary_widths))
        (sources_BS,) = self.inputs(split, numbers_B)
        return sources_BS, self.data.summaries.splits[split].padded(numbers_B, summary_width, PADDING)

    def inputs(self, split: str, numbers_B: NDArray[np.int64]) -> tuple[NDArray[np.int32]]:
        widths_B, _ = self.sizes(split, numbers_B)
        return (self.data.sources.splits[split].padded(numbers_B, int(widths_B.max()), PADDING),)

    def search(self, sources_BS: NDArray[np.int32]) -> list[str]:
        settings, end, words = self.settings, self.data.end, self.data.summaries.words
        _, words_BWL = beam_search(
            self.model,
            sources_BS,
            settings["length"],
            width=settings["beam"],
            end=end,
            without=self.without,
        )
        # After the end, the sequence is filled with it.
        return [" ".join(words[number] for number in best_L if number != end) for best_L in words_BWL[:, 0].tolist()]

    def summaries(self, progress: Progress) -> tuple[list[str], Measurement]:
        """Generate the summaries of the scored pairs, and measure seconds per summary with one sample per batch."""
        split = self.settings["split"]
        pairs_P = self.scored[split]
        # By sources only, since the summaries are not known yet.
        widths_P, _ = self.sizes(split, pairs_P)
        order = batching.sorted_batches(widths_P, np.zeros_like(widths_P), self.batch)
        found: dict[int, str] = {}
        samples: list[float] = []
        total = 0.0
        for numbers_B, texts, seconds in self.decoded([pairs_P[chosen_B] for chosen_B in order], progress):
            found |= zip(numbers_B.tolist(), texts, strict=True)
            samples.append(seconds / len(numbers_B))
            total += seconds
        shapes = sorted(self.decoded_shapes)
        detail = {"split": split, "beam": self.settings["beam"], "batch": self.batch, "shapes": shapes}
        summaries = [found[number] for number in pairs_P.tolist()]
        return summaries, Measurement("decode_seconds", total / len(summaries), samples, detail=detail)
