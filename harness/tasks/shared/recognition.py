"""Utterances of a recognizer: padded batches with SpecAugment, transcripts by beam search, and the real-time factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.speech.speech_corpora import Speech
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.run.settings import Setting
from vocabench.harness.speech import features
from vocabench.harness.speech.augment import SpecAugment
from vocabench.harness.tasks.shared import batching, sequences
from vocabench.harness.tasks.shared.data import Progress
from vocabench.impls.errors import BadInput
from vocabench.impls.models.decoding import PathSearch, beam_search
from vocabench.impls.models.recognizer import PADDING, Recognizer
from vocabench.impls.options import Number
from vocabench.impls.structures.path_blocks import MOST_LEVELS

Texts = Mapping[str, Sequence[NDArray[np.int32]]]  # ids of the transcripts by split, for all of its utterances

SETTINGS: dict[str, Setting] = {
    "path_beam": Number(0, 0, 10**4, "paths followed through a binary tree, as in the paper; 0 for exact search"),
    "path_levels": Number(2, 1, MOST_LEVELS, "levels of the tree between two selections of paths"),
}

_LENGTH_BINS = 3


def check_paths(settings: Mapping[str, Any]) -> None:
    """Raise `BadInput` if fewer paths than sequences are followed."""
    if 0 < settings["path_beam"] < settings["beam"]:
        raise BadInput(
            f"path_beam={settings['path_beam']} with beam={settings['beam']}: allowed: 0, or as many as beam or more"
        )


def encoded(speech: Speech, splits: Sequence[str]) -> Texts:
    return {split: [speech.vocabulary.encode(each) for each in speech.splits[split]] for split in splits}


class Recognition(sequences.Sequences):
    """Utterances and a recognizer.

    Attributes:
        longest: Largest number of decoded units.
        widths_W: Widths that utterances are padded to, ascending.
        text_widths_W: Widths of their transcripts, one for each width of utterances.
    """

    model: Recognizer

    def __init__(
        self,
        cell: Cell,
        model: Recognizer,
        speech: Speech,
        frames: features.Features,
        texts: Texts,
        scored: dict[str, NDArray[np.int64]],
        training_P: NDArray[np.int64] | None = None,
        *,
        batch: int,
        longest: int,
    ) -> None:
        super().__init__(cell, scored, batch)
        self.model, self.speech, self.features, self.texts, self.longest = model, speech, frames, texts, longest
        self.augment = SpecAugment(time_share=cell.settings["mask_share"]) if cell.settings["augment"] else None
        self.frames = {split: np.array([len(frames[each]) for each in speech.splits[split]]) for split in texts}
        # Nothing of the training split but the training utterances is ever scored.
        self._choose_widths(scored if training_P is None else scored | {"train": training_P})

    def _choose_widths(self, used: Mapping[str, NDArray[np.int64]]) -> None:
        """Choose one width of texts for each width of utterances, so that there are no more shapes than widths."""
        frames_P = np.concatenate([self.frames[split][numbers_P] for split, numbers_P in used.items()])
        lengths_P = np.concatenate([self.sizes_of_texts(split, numbers_P) for split, numbers_P in used.items()])
        self.widths_W = batching.widths(frames_P, self.settings["paddings"])
        self.text_widths_W = np.array([lengths_P[frames_P <= width].max() for width in self.widths_W])

    def sizes_of_texts(self, split: str, numbers_P: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([len(self.texts[split][number]) for number in numbers_P])

    def sizes(self, split: str, numbers_P: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        widths_P = batching.width_of(self.frames[split][numbers_P], self.widths_W)
        return widths_P, self.sizes_of_texts(split, numbers_P)

    def inputs(self, split: str, numbers_B: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return (B, F, M) normalized features, with zeros beyond the last frame, and (B,) numbers of frames."""
        frames_B = self.frames[split][numbers_B]
        width = int(batching.width_of(frames_B.max(), self.widths_W))
        found: NDArray[np.float32] | None = None
        for row, number in enumerate(numbers_B.tolist()):
            features_FM = features.normalised(self.features[self.speech.splits[split][number]])
            if found is None:
                found = np.zeros((len(numbers_B), width, features_FM.shape[1]), np.float32)
            found[row, : len(features_FM)] = features_FM
        assert found is not None
        return found, frames_B

    def padded(self, split: str, numbers_B: NDArray[np.int64]) -> sequences.Batch:
        features_BFM, frames_B = self.inputs(split, numbers_B)
        place = int(np.searchsorted(self.widths_W, features_BFM.shape[1]))
        targets_BT = np.full((len(numbers_B), self.text_widths_W[place]), PADDING, np.int32)
        for row, number in enumerate(numbers_B.tolist()):
            ids_L = self.texts[split][number]
            targets_BT[row, : len(ids_L)] = ids_L
        return features_BFM, frames_B, targets_BT

    def training_batch(self, epoch: int, numbers_B: NDArray[np.int64]) -> sequences.Batch:
        """Apply SpecAugment's masks with zero, the mean. The masks depend on the epoch and the utterance only."""
        features_BFM, frames_B, targets_BT = self.padded("train", numbers_B)
        if self.augment is not None:
            for features_FM, frames, number in zip(features_BFM, frames_B, numbers_B, strict=True):
                rng = np.random.default_rng([self.cell.seed, 14, epoch, number])
                (masked_FM,) = self.augment.masked_BTM([int(frames)], features_FM.shape[1], rng)
                features_FM[:frames][masked_FM] = 0
        return features_BFM, frames_B, targets_BT

    def search(self, features_BFM: NDArray[np.float32], frames_B: NDArray[np.int64]) -> list[str]:
        self.model.listen(features_BFM, frames_B, self.longest)
        prompts_B1 = np.full((len(frames_B), 1), self.model.config.end)
        _, units_BWL = beam_search(
            self.model, prompts_B1, self.longest, width=self.settings["beam"], end=self.model.config.end
        )
        return [self.speech.vocabulary.decode(best_L) for best_L in units_BWL[:, 0]]

    def transcripts(self, progress: Progress) -> tuple[list[str], Measurement]:
        """Decode the scored utterances in order, and measure the real-time factor with one sample per batch.

        With the setting `path_beam`, units are searched along the paths of the layer's tree. The measurement then also
        has the real-time factor of the exact search, and the share of utterances whose transcripts are the same.
        """
        width, levels = self.settings["path_beam"], self.settings["path_levels"]
        if not width:
            return self._transcripts(progress)
        exact, exact_factor = self._transcripts(progress)
        self.model.paths = PathSearch(width, levels)
        try:
            found, factor = self._transcripts(progress)
        finally:
            self.model.paths = None
        same = float(np.mean([ours == theirs for ours, theirs in zip(found, exact, strict=True)]))
        factor.detail["paths"] = {"width": width, "levels": levels, "exact_rtf": exact_factor.value, "same": same}
        return found, factor

    def _transcripts(self, progress: Progress) -> tuple[list[str], Measurement]:
        split = self.settings["split"]
        found: dict[int, str] = {}
        self.decoded_shapes.clear()  # another search is compiled anew
        batches: list[dict[str, float]] = []
        for numbers_B, texts, seconds in self.decoded(self.batches(split), progress):
            found |= zip(numbers_B.tolist(), texts, strict=True)
            batches.append(
                {
                    "utterances": len(numbers_B),
                    "units": int(self.sizes_of_texts(split, numbers_B).sum()) - len(numbers_B),  # without the ends
                    "audio_seconds": sum(self.speech.splits[split][number].seconds for number in numbers_B.tolist()),
                    "decode_seconds": seconds,
                }
            )
        detail = {
            "split": split,
            "beam": self.settings["beam"],
            "batch": self.batch,
            "shapes": sorted(self.decoded_shapes),
            "by_length": by_length(batches),
        }
        samples = [each["decode_seconds"] / each["audio_seconds"] for each in batches]
        value = _sum(batches, "decode_seconds") / _sum(batches, "audio_seconds")
        return [found[number] for number in self.scored[split].tolist()], Measurement(
            "rtf", value, samples, detail=detail
        )


def by_length(batches: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the real-time factor of short, medium and long transcripts, as in table 6 of the paper.

    Batches of similar length are split into three parts by their units per utterance.
    """
    ordered = sorted(batches, key=lambda each: each["units"] / each["utterances"])
    found = []
    for places in np.array_split(np.arange(len(ordered)), min(_LENGTH_BINS, len(ordered))):
        part = [ordered[place] for place in places]
        found.append(
            {
                "utterances": _sum(part, "utterances"),
                "units_per_utterance": _sum(part, "units") / _sum(part, "utterances"),
                "audio_seconds": _sum(part, "audio_seconds"),
                "decode_seconds": _sum(part, "decode_seconds"),
                "rtf": _sum(part, "decode_seconds") / _sum(part, "audio_seconds"),
            }
        )
    return found


def _sum(batches: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(each[name] for each in batches)
