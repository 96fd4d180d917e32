"""Speech recognition: the recognizer of Liu et al. 2022 with any output layer, scored by character or phone error rate.

Decoding returns the most likely transcript that beam search finds, by log-probability without length normalization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers, registry
from vocabench.harness.datasets.shared.dataset import SPLITS
from vocabench.harness.datasets.speech import speech_corpora, vocabulary
from vocabench.harness.datasets.speech.layouts import SPLIT_RULES
from vocabench.harness.datasets.speech.recordings import Utterance
from vocabench.harness.datasets.speech.speech_corpora import Speech
from vocabench.harness.datasets.speech.vocabulary import COUNTS, UNITS
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Row
from vocabench.harness.run.settings import Names, Setting
from vocabench.harness.speech import features, languages
from vocabench.harness.speech.augment import SpecAugment
from vocabench.harness.tasks.shared import batching, error_rates, learning_curve, recognizers, training_loop
from vocabench.harness.tasks.shared.data import Progress, data_of
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.spec import spec_of
from vocabench.harness.tasks.shared.task import Task
from vocabench.harness.tasks.shared.text import with_pairs, with_words
from vocabench.impls.errors import BadInput
from vocabench.impls.models.decoding import beam_search
from vocabench.impls.models.recognizer import PADDING, Recognizer
from vocabench.impls.optimizers import NAMES
from vocabench.impls.options import Choice, Number
from vocabench.impls.spec import check_options

SETTINGS: dict[str, Setting] = {
    "size": Choice("paper", tuple(recognizers.SIZES), "size of the recognizer; its width is the cell's dim"),
    "units": Choice("characters", UNITS, "units of the transcripts"),
    "languages": Names((), None, "language codes or groups (Romance, Slavic, Turkic); empty for all"),
    "held_out": Names((), None, "languages or groups for testing only; empty for none"),
    "with_language": Choice(
        False, (False, True), "whether transcripts start with their language, which is decoded too"
    ),
    "min_count": Number(1, 1, 10**9, "occurrences in the training split below which a unit becomes <unk>"),
    "epochs": Number(50, 1, 10**6, "passes over the training utterances"),
    "batch": Number(32, 1, 10**6, "utterances per batch"),
    "optimizer": Choice("adam", NAMES, "the update rule"),
    "learning_rate": Number(0.002, 0.0, 1e6, "step size at the end of the warm-up, the largest"),
    "warmup": Number(25_000, 0, 10**9, "steps of the warm-up; 0 for a constant step size"),
    "weight_decay": Number(0.0, 0.0, 1e6, "L2"),
    "clip_norm": Number(1.0, 0.0, 1e6, "largest global gradient norm; 0 disables clipping"),
    "smoothing": Number(0.1, 0.0, 0.999, "share of each target that is spread over all units"),
    "ctc_weight": Number(0.0, 0.0, 0.999, "share of CTC in the loss"),
    "augment": Choice(True, (False, True), "SpecAugment in training"),
    "mask_share": Number(1.0, 0.0, 1.0, "largest share of an utterance that one time mask may hide"),
    **learning_curve.SETTINGS,
    "utterances": Number(0, 0, 10**9, "training utterances used; 0 for all"),
    "keep": Number(1.0, 1e-9, 1.0, "share of the training audio that is kept, distributed over languages by alpha"),
    "hours": Number(0.0, 0.0, 1e9, "the same share as hours of audio; 0 to take keep"),
    "alpha": Number(1.0, 0.0, 1.0, "exponent of the sizes of languages in down-sampling; 1 keeps their proportions"),
    "counts": Choice("pooled", COUNTS, "counts of units for the layer: pooled, or shares within each language"),
    "splits": Choice("official", SPLIT_RULES, "splits of Common Voice: its lists, or parts of its validated.tsv"),
    "split": Choice("test", SPLITS, "the split that is scored; for train, the utterances used"),
    "score_utterances": Number(0, 0, 10**9, "number of scored utterances, spread over the split; 0 for all"),
    "beam": Number(1, 1, 10**4, "width of the search; 1 is greedy"),
    "longest": Number(0, 0, 10**4, "largest number of decoded units; 0 for the longest training transcript"),
    "paddings": Number(3, 1, 100, "number of widths that utterances are padded to"),
}

_EXAMPLES = 20
_LENGTH_BINS = 3


def load(name: str, vocab: int | None, settings: Mapping[str, Any], progress: Progress) -> Speech:
    """Load the speech. `vocab` is None or the number of units.

    Raises:
        BadInput: As in `speech_corpora.load`, or the number of units differs, or a required split is missing.
    """
    speech = speech_corpora.load(
        name,
        units=settings["units"],
        languages=settings["languages"],
        held_out=settings["held_out"],
        with_language=settings["with_language"],
        min_count=settings["min_count"],
        splits=settings["splits"],
        progress=progress,
    )
    units = len(speech.counts_V)
    if vocab not in (None, units):
        raise BadInput(f"vocabulary of {vocab:,} units for speech {name!r}: allowed: {units:,}, the units it has")
    if settings["beam"] > units:
        raise BadInput(f"beam={settings['beam']} over {units:,} units: allowed: as many as there are, or fewer")
    if settings["hours"] and settings["keep"] != 1:
        raise BadInput(f"keep={settings['keep']} with hours={settings['hours']}: allowed: one of the two")
    for split in ("train", "valid", settings["split"]):
        if split not in speech.splits:
            raise BadInput(f"speech {name!r}: no split {split!r}: allowed: one, next to {', '.join(speech.splits)}")
    return speech


def run(cell: Cell, progress: Progress) -> Result:
    speech, provenance = data_of(cell, load, progress)
    training = Training(cell, speech, features.of_corpus(speech, progress=progress))
    training.run(progress)
    measurements = training.measurements()
    transcripts, real_time_factor = training.transcripts(progress)
    score = _scored(cell, speech, transcripts)
    utterances = _utterances(cell, speech)
    score.detail.update(
        ids=[utterance.id for utterance in utterances],
        transcripts=transcripts,
        skipped={reason: len(ids) for reason, ids in speech.skipped.items()},
    )
    if cell.dataset in registry.datasets() and registry.dataset(cell.dataset).may_quote:
        score.detail["examples"] = _examples(speech, utterances, transcripts)
    return Result([score, *measurements, real_time_factor], {}, provenance)


def rescored(row: Row, progress: Progress) -> list[Measurement]:
    """Recompute the error rate of a row from its transcripts and the dataset.

    Raises:
        BadInput: The dataset is not available, or differs from that of the row.
    """
    cell = row.cell
    speech, _ = data_of(cell, load, progress)
    (transcripts,) = [m.detail["transcripts"] for m in row.measurements if "transcripts" in m.detail]
    return [_scored(cell, speech, transcripts)]


def _training_utterances(cell: Cell, speech: Speech) -> NDArray[np.int64]:
    """Return the indices of the training utterances, which are the same for every seed."""
    kept_P = _down_sampled(cell, speech)
    return kept_P[batching.spread(len(kept_P), cell.settings["utterances"])]


def _down_sampled(cell: Cell, speech: Speech) -> NDArray[np.int64]:
    """Return the training utterances that are left of each language, by the shares of all languages of the corpus."""
    train, settings = speech.splits["train"], cell.settings
    keep, hours, alpha = settings["keep"], settings["hours"], settings["alpha"]
    if keep == alpha == 1 and not hours:
        return np.arange(len(train))
    held_out, seconds = set(languages.expand(settings["held_out"])), dict[str, float]()
    for utterance in speech.everything:
        if utterance.split == "train" and utterance.language not in held_out:
            seconds[utterance.language] = seconds.get(utterance.language, 0.0) + utterance.seconds
    if hours:
        total = sum(seconds.values()) / 3600
        if hours > total:
            raise BadInput(f"hours={hours} of {total:.2f} in the training split: allowed: up to that")
        keep = hours / total
    ratios = languages.ratios(seconds, keep, alpha)
    ids, spoken, lengths = zip(*((each.id, each.language, each.seconds) for each in train), strict=True)
    return languages.down_sample(ids, spoken, lengths, ratios)


def _scored_utterances(cell: Cell, speech: Speech, split: str) -> NDArray[np.int64]:
    if split == "train":
        numbers_P = np.unique(_training_utterances(cell, speech))
    else:
        numbers_P = np.arange(len(speech.splits[split]))
    return numbers_P[batching.spread(len(numbers_P), cell.settings["score_utterances"])]


def _utterances(cell: Cell, speech: Speech) -> list[Utterance]:
    split = cell.settings["split"]
    return [speech.splits[split][number] for number in _scored_utterances(cell, speech, split).tolist()]


def _scored(cell: Cell, speech: Speech, transcripts: Sequence[str]) -> Measurement:
    found = error_rates.score(speech, _utterances(cell, speech), transcripts)
    found.detail["split"] = cell.settings["split"]
    return found


def _examples(speech: Speech, utterances: Sequence[Utterance], transcripts: Sequence[str]) -> list[dict[str, Any]]:
    """Return examples for `vocabench table --examples`: some of the utterances with their decoded transcripts."""
    return [
        {
            "id": utterances[place].id,
            "language": utterances[place].language,
            "reference": speech.transcript(utterances[place]),
            "ours": transcripts[place],
        }
        for place in batching.spread(len(utterances), _EXAMPLES).tolist()
    ]


class Training(training_loop.Training):
    """One training run of a recognizer."""

    def __init__(self, cell: Cell, speech: Speech, frames: features.Features) -> None:
        scored = {split: _scored_utterances(cell, speech, split) for split in ("valid", cell.settings["split"])}
        super().__init__(cell, _training_utterances(cell, speech), scored)
        self.speech, self.features = speech, frames
        units = speech.vocabulary
        options = with_words(check_options(registry.definition(cell.method), cell.options), units.units)
        if cell.options.get("interval"):
            raise BadInput(
                f"option interval={cell.options['interval']} of {cell.method}: allowed in speech: 0, because "
                "clusters are not re-organized there"
            )
        if "interval" in options:
            options["interval"] = 0
        # By split, for all of its utterances.
        self.texts = {split: [units.encode(each) for each in speech.splits[split]] for split in ("train", *scored)}
        said_T = np.concatenate([self.texts["train"][number] for number in self.training_P])
        options = with_pairs(options, said_T, len(units.units))
        spec = spec_of(cell, self._counts(), options)
        config = recognizers.config_of(cell, units.end)
        self.model: Recognizer = layers.create_network(cell.framework, spec, config, cell.device)
        self.augment = SpecAugment(time_share=cell.settings["mask_share"]) if cell.settings["augment"] else None
        self.frames = {
            split: np.array([len(frames[each]) for each in speech.splits[split]]) for split in ("train", *scored)
        }
        self.longest = cell.settings["longest"] or max(len(self.texts["train"][number]) for number in self.training_P)
        self._choose_widths()

    def _counts(self) -> NDArray[np.int64]:
        """Return the counts (V,) of the units from which the layer builds its structure."""
        if self.settings["counts"] == "pooled":
            return self.speech.counts_V
        spoken = [utterance.language for utterance in self.speech.splits["train"]]
        return vocabulary.per_language(self.texts["train"], spoken, len(self.speech.counts_V))

    def _choose_widths(self) -> None:
        """Choose one width of texts for each width of utterances, so that there are no more shapes than widths."""
        used = self.scored | {"train": self.training_P}  # nothing else of the training split is ever scored
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

    def padded(self, split: str, numbers_B: NDArray[np.int64]) -> training_loop.Batch:
        features_BFM, frames_B = self.inputs(split, numbers_B)
        place = int(np.searchsorted(self.widths_W, features_BFM.shape[1]))
        targets_BT = np.full((len(numbers_B), self.text_widths_W[place]), PADDING, np.int32)
        for row, number in enumerate(numbers_B.tolist()):
            ids_L = self.texts[split][number]
            targets_BT[row, : len(ids_L)] = ids_L
        return features_BFM, frames_B, targets_BT

    def training_batch(self, epoch: int, numbers_B: NDArray[np.int64]) -> training_loop.Batch:
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
        """Decode the scored utterances in order, and measure the real-time factor with one sample per batch."""
        split = self.settings["split"]
        found: dict[int, str] = {}
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
            "by_length": _by_length(batches),
        }
        samples = [each["decode_seconds"] / each["audio_seconds"] for each in batches]
        value = _sum(batches, "decode_seconds") / _sum(batches, "audio_seconds")
        return [found[number] for number in self.scored[split].tolist()], Measurement(
            "rtf", value, samples, detail=detail
        )


def _by_length(batches: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
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


TASK = Task(SETTINGS, run, load)
