"""Summarization: the encoder-decoder of SOHSM section 5 with any output layer, scored by ROUGE and perplexity.

The models are trained on the first reference of a pair and scored against all references. Decoding returns the most
likely summary that beam search finds, by log-probability without length normalization.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers, registry
from vocabench.harness.datasets.pairs import encoded_pairs, summary_pairs
from vocabench.harness.datasets.pairs.encoded_pairs import VOCABULARIES, EncodedPairs
from vocabench.harness.datasets.shared.dataset import SPLITS
from vocabench.harness.datasets.text.tokenization import UNK
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Row
from vocabench.harness.run.settings import Setting
from vocabench.harness.tasks.shared import batching, learning_curve, rouge, summary_model, training_loop
from vocabench.harness.tasks.shared.data import Progress, data_of
from vocabench.harness.tasks.shared.optimizer import optimizer_of
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.spec import spec_of
from vocabench.harness.tasks.shared.task import Task
from vocabench.impls.errors import BadInput
from vocabench.impls.models.decoding import beam_search
from vocabench.impls.models.summarizer import PADDING, Summarizer, SummarizerConfig
from vocabench.impls.optimizers import NAMES
from vocabench.impls.options import Choice, Number

EXTRA_METHODS = ("lead",)  # without a layer: the first words of the source, as many as in a training summary

SETTINGS: dict[str, Setting] = {
    "epochs": Number(10, 1, 10**6, "passes over the training pairs"),
    "batch": Number(128, 1, 10**6, "pairs per batch"),
    "embedding": Number(512, 1, 10**6, "width of the word embedding; the width of both LSTMs is the cell's dim"),
    "optimizer": Choice("adam", NAMES, "the update rule"),
    "learning_rate": Number(0.001, 0.0, 1e6, "step size"),
    "weight_decay": Number(1e-6, 0.0, 1e6, "L2"),
    "clip_norm": Number(0.0, 0.0, 1e6, "largest global gradient norm; 0 disables clipping"),
    **learning_curve.SETTINGS,
    "pairs": Number(0, 0, 10**9, "training pairs used, spread over the split; 0 for all"),
    "split": Choice("test", SPLITS, "the split that is scored; for train, the pairs used"),
    "score_pairs": Number(0, 0, 10**9, "number of scored pairs, spread over the split; 0 for all"),
    "beam": Number(5, 1, 10**4, "width of the search"),
    "length": Number(30, 1, 10**4, "largest number of words of a summary"),
    "fixed_length": Choice(False, (False, True), "whether summaries have exactly this length, as for DUC-2004"),
    **rouge.SETTINGS,
    "source_vocab": Number(0, 0, 10**9, "vocabulary of sources; 0 for the words that occur min_count times"),
    "min_count": Number(2, 1, 10**9, "occurrences that a word needs if no vocabulary size is given"),
    "vocabulary": Choice("separate", VOCABULARIES, "words of sources: their own, or those of the summaries"),
    "max_source": Number(100, 1, 10**6, "largest number of words of a source"),
    "max_summary": Number(50, 1, 10**6, "largest number of words of a training summary"),
    "digits": Choice(False, (False, True), "whether to replace digits by #, as in Rush et al.'s Gigaword"),
    "paddings": Number(3, 1, 100, "number of widths that sources and summaries are padded to"),
    "cluster_epochs": Number(5, 1, 10**6, "epochs of the language model of the summaries, if a layer needs one"),
    "cluster_batch": Number(128, 1, 10**6, "sequences that this language model reads in parallel"),
}

_EXAMPLES = 20


def load(name: str, vocab: int | None, settings: Mapping[str, Any], progress: Progress) -> EncodedPairs:
    """Load the pairs. `vocab` is the vocabulary size of the summaries.

    Raises:
        BadInput: As in `encoded_pairs.load`, or the validation split or the scored split has no pairs.
    """
    data = encoded_pairs.load(
        name,
        vocab=vocab,
        source_vocab=settings["source_vocab"] or None,
        min_count=settings["min_count"],
        max_source=settings["max_source"],
        max_summary=settings["max_summary"],
        digits=settings["digits"],
        vocabulary=settings["vocabulary"],
        progress=progress,
    )
    for split in ("valid", settings["split"]):
        if split not in data.pairs.splits:
            raise BadInput(f"pairs {name}: no split {split!r}: allowed: one, next to {', '.join(data.pairs.splits)}")
    return data


def run(cell: Cell, progress: Progress) -> Result:
    data, provenance = data_of(cell, load, progress)
    if cell.method in EXTRA_METHODS:
        return Result(_scores(cell, data, _lead(cell, data)), {}, provenance)
    options, told = summary_model.layer_options(cell, data, _training_pairs(cell, data), progress)
    training = Training(cell, data, options)
    training.run(progress)
    found = training.measurements()
    found[0].detail.update(told)
    summaries, seconds = training.summaries(progress)
    scores = _scores(cell, data, summaries)
    scores[0].detail["summaries"] = summaries
    if cell.dataset in registry.datasets() and registry.dataset(cell.dataset).may_quote:
        scores[0].detail["examples"] = _examples(cell, data, summaries)
    return Result([*scores, *found, seconds], {}, provenance)


def rescored(row: Row, progress: Progress) -> list[Measurement]:
    """Recompute the ROUGE scores of a row from its summaries and the dataset. Summaries of a lead row are recomputed.

    Raises:
        BadInput: The dataset is not available, or differs from that of the row.
    """
    cell = row.cell
    data, _ = data_of(cell, load, progress)
    if cell.method in EXTRA_METHODS:
        return _scores(cell, data, _lead(cell, data))
    (summaries,) = [m.detail["summaries"] for m in row.measurements if "summaries" in m.detail]
    return _scores(cell, data, summaries)


def _training_pairs(cell: Cell, data: EncodedPairs) -> NDArray[np.int64]:
    return batching.spread(len(data.pairs.splits["train"]), cell.settings["pairs"])


def _scored_pairs(cell: Cell, data: EncodedPairs, split: str) -> NDArray[np.int64]:
    pairs_P = _training_pairs(cell, data) if split == "train" else np.arange(len(data.pairs.splits[split]))
    return pairs_P[batching.spread(len(pairs_P), cell.settings["score_pairs"])]


def _lead(cell: Cell, data: EncodedPairs) -> list[str]:
    """Return the first words of each source.

    For F1 as many as the mean training summary has; for recall all of them, because the scoring truncates them.
    """
    summaries = data.pairs.splits["train"]
    split = data.pairs.splits[cell.settings["split"]]
    sources = [split[int(number)][0].split() for number in _scored_pairs(cell, data, cell.settings["split"])]
    if cell.settings["scoring"] == "recall75":
        return [" ".join(words) for words in sources]
    lengths = [len(summaries[int(number)][1][0].split()) for number in _training_pairs(cell, data)]
    return [" ".join(words[: round(np.mean(lengths))]) for words in sources]


def _scores(cell: Cell, data: EncodedPairs, summaries: list[str]) -> list[Measurement]:
    name = cell.settings["split"]
    split = data.pairs.splits[name]
    if cell.settings["scoring"] == "rush2015":  # with the numbers that `digits` has replaced
        split = summary_pairs.load(cell.dataset).splits[name]
    pairs = [split[int(number)] for number in _scored_pairs(cell, data, name)]
    references = [of_pair for _, of_pair in pairs]
    if cell.settings["scoring"] == "rush2015":
        summaries = [rouge.with_numbers(summary, source) for summary, (source, _) in zip(summaries, pairs, strict=True)]
    found = rouge.scores(summaries, references, cell.settings)
    for measurement in found:
        measurement.detail["split"] = name
        if name in data.pairs.shared_with_training:
            measurement.detail["shared_with_training"] = data.pairs.shared_with_training[name]
    return found


def _examples(cell: Cell, data: EncodedPairs, summaries: list[str]) -> list[dict[str, Any]]:
    """Return examples for `vocabench table --examples`: some of the pairs with their generated summaries."""
    split = data.pairs.splits[cell.settings["split"]]
    pairs_P = _scored_pairs(cell, data, cell.settings["split"])
    found = []
    for place in batching.spread(len(pairs_P), _EXAMPLES):
        text, references = split[int(pairs_P[place])]
        found.append({"text": text, "summaries": references, "ours": summaries[place]})
    return found


class Training(training_loop.Training):
    """One training run of a summarizer."""

    def __init__(self, cell: Cell, data: EncodedPairs, options: Mapping[str, object]) -> None:
        scored = {split: _scored_pairs(cell, data, split) for split in ("valid", cell.settings["split"])}
        super().__init__(cell, _training_pairs(cell, data), scored)
        self.data = data
        spec = spec_of(cell, data.counts_V, options)
        config = SummarizerConfig(
            sources=len(data.sources.words),
            end=data.end,
            embedding=cell.settings["embedding"],
            hidden=cell.dim,
            optimizer=optimizer_of(cell.settings),
            seed=cell.seed,
        )
        self.model: Summarizer = layers.create_network(cell.framework, spec, config, cell.device)
        used = scored | {"train": self.training_P}
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


TASK = Task(SETTINGS, run, load, extra_methods=EXTRA_METHODS)
