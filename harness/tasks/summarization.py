"""Summarization: the encoder-decoder of SOHSM section 5 with any output layer, scored by ROUGE and perplexity.

The models are trained on the first reference of a pair and scored against all references. Decoding returns the most
likely summary that beam search finds, by log-probability without length normalization.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers, network_folder, registry
from vocabench.harness.datasets.pairs import encoded_pairs, summary_pairs
from vocabench.harness.datasets.pairs.encoded_pairs import VOCABULARIES, EncodedPairs
from vocabench.harness.datasets.shared.dataset import SPLITS
from vocabench.harness.network_folder import SavedNetwork
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Row
from vocabench.harness.run.settings import Setting
from vocabench.harness.tasks.shared import batching, evaluation, learning_curve, rouge, summary_model
from vocabench.harness.tasks.shared.data import Progress, data_of
from vocabench.harness.tasks.shared.destinations import SAVE, network_path
from vocabench.harness.tasks.shared.evaluation import Evaluation, HeldOutSamples, Request, Scores
from vocabench.harness.tasks.shared.optimizer import optimizer_of
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.spec import spec_of
from vocabench.harness.tasks.shared.summaries import Summaries
from vocabench.harness.tasks.shared.task import Task
from vocabench.harness.tasks.shared.training_loop import Training
from vocabench.impls.errors import BadInput
from vocabench.impls.models.summarizer import Summarizer, SummarizerConfig
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
    **SAVE,
}

_EXAMPLES = 20

# The settings that select all pairs of a split.
_WHOLE = {"pairs": 0, "score_pairs": 0}


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
    save_to = network_path(cell)
    training_P = _training_pairs(cell, data)
    options, told = summary_model.layer_options(cell, data, training_P, progress)
    pairs = untrained(cell, data, options)
    training = Training(pairs, training_P)
    training.run(progress)
    found = training.measurements()
    found[0].detail.update(told)
    summaries, seconds = pairs.summaries(progress)
    scores = _scores(cell, data, summaries)
    scores[0].detail["summaries"] = summaries
    if cell.dataset in registry.datasets() and registry.dataset(cell.dataset).may_quote:
        scores[0].detail["examples"] = _examples(cell, data, summaries)
    if save_to is not None:  # last, so that a cell that fails can be measured again
        progress(f"network to {save_to}")
        values = {score.quantity: score.value for score in (*scores, found[0])}
        sha256 = network_folder.save(
            save_to,
            pairs.model,
            pairs.model.spec,
            data.summaries.words,
            cell,
            provenance,
            {"split": cell.settings["split"], **values},
            data.sources.words,
        )
        scores[0].detail["network"] = {"name": save_to.name, "sha256": sha256}
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
    found = rouge.scores(*_compared(cell, data, summaries), cell.settings)
    for measurement in found:
        measurement.detail["split"] = name
        if name in data.pairs.shared_with_training:
            measurement.detail["shared_with_training"] = data.pairs.shared_with_training[name]
    return found


def _compared(cell: Cell, data: EncodedPairs, summaries: list[str]) -> tuple[list[str], list[list[str]]]:
    """Return the texts that ROUGE compares: the summary and the references of each scored pair."""
    name = cell.settings["split"]
    split = data.pairs.splits[name]
    if cell.settings["scoring"] == "rush2015":  # with the numbers that `digits` has replaced
        split = summary_pairs.load(cell.dataset).splits[name]
    pairs = [split[int(number)] for number in _scored_pairs(cell, data, name)]
    if cell.settings["scoring"] == "rush2015":
        summaries = [rouge.with_numbers(summary, source) for summary, (source, _) in zip(summaries, pairs, strict=True)]
    return [rouge.known(summary) for summary in summaries], [references for _, references in pairs]


def _examples(cell: Cell, data: EncodedPairs, summaries: list[str]) -> list[dict[str, Any]]:
    """Return examples for `vocabench table --examples`: some of the pairs with their generated summaries."""
    split = data.pairs.splits[cell.settings["split"]]
    pairs_P = _scored_pairs(cell, data, cell.settings["split"])
    found = []
    for place in batching.spread(len(pairs_P), _EXAMPLES):
        text, references = split[int(pairs_P[place])]
        found.append({"text": text, "summaries": references, "ours": summaries[place]})
    return found


def untrained(cell: Cell, data: EncodedPairs, options: Mapping[str, object]) -> Summaries:
    """Return the pairs of a cell with a new summarizer."""
    training_P = _training_pairs(cell, data)
    scored = {split: _scored_pairs(cell, data, split) for split in ("valid", cell.settings["split"])}
    spec = spec_of(cell, data.counts_V, options)
    config = SummarizerConfig(
        sources=len(data.sources.words),
        end=data.end,
        embedding=cell.settings["embedding"],
        hidden=cell.dim,
        optimizer=optimizer_of(cell.settings),
        seed=cell.seed,
    )
    model: Summarizer = layers.create_network(cell.framework, spec, config, cell.device)
    return Summaries(cell, model, data, scored, training_P, batch=min(cell.settings["batch"], len(training_P)))


def _held_out(saved: SavedNetwork, request: Request, progress: Progress) -> HeldOutSamples:
    """Return the pairs that a network was scored on, or those of another split, dataset or setting.

    Raises:
        BadInput: The dataset does not exist, has no such split, or is not the one that the network was trained on.
    """
    cell, is_own = evaluation.cell_for(saved, request, _WHOLE), request.dataset is None
    data = _pairs_for(saved, cell, is_own, progress)
    evaluation.check_split(data.name, cell.settings["split"], data.pairs.splits)
    return HeldOutSamples(cell, is_own, data.name)


def _pairs_for(saved: SavedNetwork, cell: Cell, is_own: bool, progress: Progress) -> EncodedPairs:
    """Return the pairs of the cell in the words of a network, in which other words of other data are <unk>."""
    settings = cell.settings
    if is_own:
        data = load(cell.dataset, cell.vocab, {**settings, "split": saved.scores["split"]}, progress)
        evaluation.check_own(saved, data, (data.summaries.words, saved.words), (data.sources.words, saved.sources))
        return data
    return encoded_pairs.load_in_words(
        cell.dataset,
        settings["split"],
        saved.sources,
        saved.words,
        max_source=settings["max_source"],
        max_summary=settings["max_summary"],
        digits=settings["digits"],
        progress=progress,
    )


def _evaluate(folder: Path, framework: str, device: str, held_out: HeldOutSamples) -> Scores:
    """Generate and score summaries with a saved network, in the process of its framework.

    Raises:
        BadInput: The framework has no such device.
    """
    saved, model = evaluation.opened(folder, framework, device, Summarizer)
    cell = dataclasses.replace(held_out.cell, framework=framework, device=device)
    data, split = _pairs_for(saved, cell, held_out.is_own, lambda line: None), cell.settings["split"]
    scored = {split: _scored_pairs(cell, data, split)}
    pairs = Summaries(cell, model, data, scored, batch=cell.settings["batch"])
    summaries, _ = pairs.summaries(lambda line: None)
    values = {score.quantity: score.value for score in _scores(cell, data, summaries)}
    records = [
        {"summary": summary, "references": references}
        for summary, references in zip(*_compared(cell, data, summaries), strict=True)
    ]
    return Scores({**values, "perplexity": pairs.perplexity(split)}, "summaries", len(records), records)


TASK = Task(
    SETTINGS,
    run,
    load,
    extra_methods=EXTRA_METHODS,
    evaluation=Evaluation(_held_out, _evaluate, ("beam", "length", "fixed_length", "score_pairs", *rouge.SETTINGS)),
)
