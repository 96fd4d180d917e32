"""Summarization: the encoder-decoder of SOHSM section 5 with any output layer, scored by ROUGE and perplexity.

The models learn the first reference of a pair, and are scored against all. What they decode is the likeliest summary
that beam search finds, by its log-probability and not divided by its length.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import layers, registry
from harness.cells import Cell, Setting
from harness.datasets import _encoded_pairs
from harness.datasets._encoded_pairs import EncodedPairs
from harness.datasets._source import SPLITS
from harness.quantities import Measurement
from harness.store import Row
from harness.tasks import _pair_batches, _rouge, _summary_model
from harness.tasks._data import Progress, data_of
from harness.tasks._optimizer import optimizer_of
from harness.tasks._result import Result
from impls.decoding import beam_search
from impls.errors import BadInput
from impls.optimizers import NAMES
from impls.options import Choice, Number
from impls.summarizer import PADDING, Summarizer, SummarizerConfig

EXTRA_METHODS = ("lead",)  # no layer at all: the source's first words, as many as a training summary has

SETTINGS: dict[str, Setting] = {
    "epochs": Number(10, 1, 10**6, "passes over the training pairs"),
    "batch": Number(128, 1, 10**6, "pairs side by side"),
    "embedding": Number(512, 1, 10**6, "width of a word's vector; both LSTMs' is the cell's dim"),
    "optimizer": Choice("adam", NAMES, "the update rule"),
    "learning_rate": Number(0.001, 0.0, 1e6, "step size"),
    "weight_decay": Number(1e-6, 0.0, 1e6, "L2"),
    "clip_norm": Number(0.0, 0.0, 1e6, "largest global gradient norm; 0 clips nothing"),
    "evaluations": Number(1, 1, 10**6, "evaluations an epoch on the validation split"),
    "pairs": Number(0, 0, 10**9, "training pairs used, spread over the split; 0 for all"),
    "split": Choice("test", SPLITS, "the split that is scored; of train, the pairs used"),
    "score_pairs": Number(0, 0, 10**9, "pairs of a split that are scored, spread over it; 0 for all"),
    "beam": Number(5, 1, 10**4, "width of the search"),
    "length": Number(30, 1, 10**4, "words of a summary, at most"),
    "fixed_length": Choice(False, (False, True), "exactly so many words: the end is never decoded, as for DUC-2004"),
    "scoring": Choice("f1", _rouge.SCORINGS, "F1 of whole summaries, or recall of 75 bytes"),
    "source_vocab": Number(0, 0, 10**9, "words of sources, <unk> among them; 0 for those that occur min_count times"),
    "min_count": Number(2, 1, 10**9, "how often a word must occur where the vocabulary has no size"),
    "max_source": Number(100, 1, 10**6, "words of a source that are read"),
    "max_summary": Number(50, 1, 10**6, "words of a summary that are learned"),
    "digits": Choice(False, (False, True), "# for each digit, as in Rush et al.'s Gigaword"),
    "paddings": Number(3, 1, 100, "widths that sources are padded to, and summaries"),
    "cluster_epochs": Number(5, 1, 10**6, "of the language model of the summaries, where a layer needs one first"),
    "cluster_batch": Number(128, 1, 10**6, "its sequences side by side"),
}

_EXAMPLES = 20


def load(name: str, vocab: int | None, settings: Mapping[str, Any], progress: Progress) -> EncodedPairs:
    """The pairs; `vocab` is of summaries.

    Raises:
        BadInput: As `_encoded_pairs.load`; there are no pairs for validation, or none of the split that is scored.
    """
    data = _encoded_pairs.load(
        name,
        vocab=vocab,
        source_vocab=settings["source_vocab"] or None,
        min_count=settings["min_count"],
        max_source=settings["max_source"],
        max_summary=settings["max_summary"],
        digits=settings["digits"],
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
    options, told = _summary_model.layer_options(cell, data, _training_pairs(cell, data), progress)
    training = Training(cell, data, options)
    training.run(progress)
    found = training.measurements()
    found[0].detail.update(told)
    summaries, seconds = training.decoded(progress)
    scores = _scores(cell, data, summaries)
    scores[0].detail["summaries"] = summaries
    if cell.dataset in registry.datasets() and registry.dataset(cell.dataset).MAY_QUOTE:
        scores[0].detail["examples"] = _examples(cell, data, summaries)
    return Result([*scores, *found, seconds], {}, provenance)


def rescored(row: Row, progress: Progress) -> list[Measurement]:
    """The ROUGE scores of a row once more, from its summaries and the dataset; a lead row's are made again.

    Raises:
        BadInput: The dataset is not here, or is not the one that the row is of.
    """
    cell = Cell.from_json(row["cell"])
    data, _ = data_of(cell, load, progress)
    if cell.method in EXTRA_METHODS:
        return _scores(cell, data, _lead(cell, data))
    (summaries,) = [m["detail"]["summaries"] for m in row["measurements"] if "summaries" in m["detail"]]
    return _scores(cell, data, summaries)


def _training_pairs(cell: Cell, data: EncodedPairs) -> NDArray[np.int64]:
    return _pair_batches.spread(len(data.pairs.splits["train"]), cell.settings["pairs"])


def _scored_pairs(cell: Cell, data: EncodedPairs, split: str) -> NDArray[np.int64]:
    pairs_P = _training_pairs(cell, data) if split == "train" else np.arange(len(data.pairs.splits[split]))
    return pairs_P[_pair_batches.spread(len(pairs_P), cell.settings["score_pairs"])]


def _lead(cell: Cell, data: EncodedPairs) -> list[str]:
    """The first words of each source: for F1 as many as the mean training summary has, for recall all, since scoring
    cuts them."""
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
    references = [split[int(number)][1] for number in _scored_pairs(cell, data, name)]
    found = _rouge.scores(summaries, references, cell.settings["scoring"])
    for measurement in found:
        measurement.detail["split"] = name
    return found


def _examples(cell: Cell, data: EncodedPairs, summaries: list[str]) -> list[dict[str, Any]]:
    """What `vocabench table --examples` prints: some of the pairs, with our summary of each."""
    split = data.pairs.splits[cell.settings["split"]]
    pairs_P = _scored_pairs(cell, data, cell.settings["split"])
    found = []
    for place in _pair_batches.spread(len(pairs_P), _EXAMPLES):
        text, references = split[int(pairs_P[place])]
        found.append({"text": text, "summaries": references, "ours": summaries[place]})
    return found


class Training:
    """One training run, with what it leaves behind: the curve, and times."""

    def __init__(self, cell: Cell, data: EncodedPairs, options: Mapping[str, object]) -> None:
        self.cell, self.data, self.settings = cell, data, cell.settings
        spec = layers.spec(
            cell.method, counts=data.counts_V, dim=cell.dim, seed=cell.seed, dtype=cell.precision, **options
        )
        config = SummarizerConfig(
            sources=len(data.sources.words),
            end=data.end,
            embedding=cell.settings["embedding"],
            hidden=cell.dim,
            optimizer=optimizer_of(cell.settings),
            seed=cell.seed,
        )
        self.model: Summarizer = layers.create_summarizer(cell.framework, spec, config, cell.device)
        self.training_P = _training_pairs(cell, data)
        self.batch = min(cell.settings["batch"], len(self.training_P))
        used = {split: self._scored(split) for split in ("valid", cell.settings["split"])} | {"train": self.training_P}
        self.source_widths, self.summary_widths = (
            _pair_batches.widths(
                np.concatenate([side.splits[split].lengths_P[pairs_P] for split, pairs_P in used.items()]),
                cell.settings["paddings"],
            )
            for side in (data.sources, data.summaries)
        )
        self.train_seconds = 0.0
        self.step_seconds: list[float] = []
        self.shapes: set[tuple[int, int]] = set()
        self.curve: list[dict[str, float]] = []

    def run(self, progress: Progress) -> None:
        settings, rng = self.settings, np.random.default_rng([self.cell.seed, 12])
        per_epoch = len(self.training_P) // self.batch
        total = per_epoch * settings["epochs"]
        evaluate_at = {
            round(per_epoch * (epoch + part / settings["evaluations"]))
            for epoch in range(settings["epochs"])
            for part in range(1, settings["evaluations"] + 1)
        }
        step, losses = 0, []
        started = time.perf_counter()
        for _epoch in range(settings["epochs"]):
            for chosen_B in _pair_batches.shuffled_batches(*self._sizes("train", self.training_P), self.batch, rng):
                losses.append(self._step(self.training_P[chosen_B]))
                step += 1
                if step % 10 == 0:
                    progress(f"step {step}/{total} loss {losses[-1]:.3f}")
                if step in evaluate_at:
                    self.train_seconds += time.perf_counter() - started
                    self._evaluate(step, losses)
                    losses = []
                    progress(f"step {step}/{total} validation perplexity {self.curve[-1]['perplexity']:.2f}")
                    started = time.perf_counter()

    def _step(self, pairs_B: NDArray[np.int64]) -> float:
        """One training step; it is timed, but for the first of each shape, which may compile."""
        started = time.perf_counter()
        sources_BS, targets_BT = self._padded("train", pairs_B)
        loss = float(self.model.step(sources_BS, targets_BT))
        self.model.synchronize()
        shape = sources_BS.shape[1], targets_BT.shape[1]
        if shape in self.shapes:
            self.step_seconds.append(time.perf_counter() - started)
        self.shapes.add(shape)
        return loss

    def _evaluate(self, step: int, losses: list[float]) -> None:
        mean_loss = float(np.mean(losses))
        if not np.isfinite(mean_loss):
            raise FloatingPointError(f"training loss is {mean_loss} at step {step}")
        self.curve.append(
            {
                "step": step,
                "seconds": self.train_seconds,
                "train_loss": mean_loss,
                "perplexity": self._perplexity("valid"),
            }
        )

    def _perplexity(self, split: str) -> float:
        """By the word of the first references as they are learned: cut, each with its end."""
        pairs_P, nll, words = self._scored(split), 0.0, 0
        for chosen_B in _pair_batches.sorted_batches(*self._sizes(split, pairs_P), self.batch):
            sources_BS, targets_BT = self._padded(split, pairs_P[chosen_B])
            nll += self.model.evaluate(sources_BS, targets_BT)
            words += int((targets_BT >= 0).sum())
        return float(np.exp(nll / words))

    def measurements(self) -> list[Measurement]:
        """The first is the perplexity."""
        split = self.settings["split"]
        value = self.curve[-1]["perplexity"] if split == "valid" else self._perplexity(split)
        detail = {"split": split, "validation_perplexity": self.curve[-1]["perplexity"], "curve": self.curve}
        found = [
            Measurement("perplexity", value, detail=detail),
            Measurement("train_seconds", self.train_seconds, [self.train_seconds]),
        ]
        if self.step_seconds:
            shapes = {"pairs": self.batch, "shapes": sorted(self.shapes)}
            found.append(
                Measurement("step_seconds", float(np.median(self.step_seconds)), self.step_seconds, detail=shapes)
            )
        return found

    def decoded(self, progress: Progress) -> tuple[list[str], Measurement]:
        """The summary of each pair scored, in their order; and seconds a summary.

        A sample is of a batch; the first batch of each shape is decoded once before, which may compile.
        """
        split = self.settings["split"]
        pairs_P = self._scored(split)
        found: list[str] = [""] * len(pairs_P)
        samples: list[float] = []
        total, shapes = 0.0, set()
        # Sources alone: the summaries are not known yet.
        widths_P = self._sizes(split, pairs_P)[0]
        for chosen_B in _pair_batches.sorted_batches(widths_P, np.zeros_like(widths_P), self.batch):
            width = int(widths_P[chosen_B].max())
            sources_BS = self.data.sources.splits[split].padded(pairs_P[chosen_B], width, PADDING)
            if sources_BS.shape not in shapes:
                shapes.add(sources_BS.shape)
                self._search(sources_BS)
            started = time.perf_counter()
            summaries = self._search(sources_BS)
            seconds = time.perf_counter() - started
            total += seconds
            samples.append(seconds / len(chosen_B))
            for place, summary in zip(chosen_B, summaries, strict=True):
                found[place] = summary
            progress(f"decoded a batch of {len(chosen_B)} of {len(found):,}")
        detail = {"split": split, "beam": self.settings["beam"], "pairs": self.batch, "shapes": sorted(shapes)}
        return found, Measurement("decode_seconds", total / len(found), samples, detail=detail)

    def _search(self, sources_BS: NDArray[np.int32]) -> list[str]:
        settings, end, words = self.settings, self.data.end, self.data.summaries.words
        _, words_BWL = beam_search(
            self.model,
            sources_BS,
            settings["length"],
            width=settings["beam"],
            end=end,
            without=end if settings["fixed_length"] else -1,
        )
        # Once it has come, the end fills the rest.
        return [" ".join(words[number] for number in best_L if number != end) for best_L in words_BWL[:, 0].tolist()]

    def _scored(self, split: str) -> NDArray[np.int64]:
        return _scored_pairs(self.cell, self.data, split)

    def _sizes(self, split: str, pairs_P: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The padded width of each source, and the length of each summary."""
        lengths_P = self.data.sources.splits[split].lengths_P[pairs_P]
        widths_P = _pair_batches.width_of(lengths_P, self.source_widths)
        return widths_P, self.data.summaries.splits[split].lengths_P[pairs_P]

    def _padded(self, split: str, pairs_B: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        widths_B, lengths_B = self._sizes(split, pairs_B)
        summary_width = int(_pair_batches.width_of(lengths_B.max(), self.summary_widths))
        sources_BS = self.data.sources.splits[split].padded(pairs_B, int(widths_B.max()), PADDING)
        return sources_BS, self.data.summaries.splits[split].padded(pairs_B, summary_width, PADDING)
