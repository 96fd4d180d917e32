"""Speech recognition: the recognizer of Liu et al. 2022 with any output layer, scored by character or phone error rate.

Decoding returns the most likely transcript that beam search finds, by log-probability without length normalization.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers, network_folder, registry
from vocabench.harness.datasets.shared.dataset import SPLITS
from vocabench.harness.datasets.speech import speech_corpora, vocabulary
from vocabench.harness.datasets.speech.layouts import SPLIT_RULES
from vocabench.harness.datasets.speech.recordings import Utterance
from vocabench.harness.datasets.speech.speech_corpora import Speech
from vocabench.harness.datasets.speech.vocabulary import COUNTS, UNITS, Vocabulary
from vocabench.harness.network_folder import SavedNetwork
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Row
from vocabench.harness.run.settings import Names, Setting
from vocabench.harness.speech import features, languages
from vocabench.harness.tasks.shared import (
    batching,
    error_rates,
    evaluation,
    learning_curve,
    recognition,
    recognizers,
)
from vocabench.harness.tasks.shared.data import Progress, data_of
from vocabench.harness.tasks.shared.destinations import SAVE, network_path
from vocabench.harness.tasks.shared.evaluation import Evaluation, HeldOutSamples, Request, Scores
from vocabench.harness.tasks.shared.recognition import Recognition
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.spec import spec_of
from vocabench.harness.tasks.shared.task import Task
from vocabench.harness.tasks.shared.text import with_pairs, with_words
from vocabench.harness.tasks.shared.training_loop import Training
from vocabench.impls.errors import BadInput
from vocabench.impls.models.recognizer import Recognizer
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
    **recognition.SETTINGS,
    "longest": Number(0, 0, 10**4, "largest number of decoded units; 0 for the longest training transcript"),
    "paddings": Number(3, 1, 100, "number of widths that utterances are padded to"),
    **SAVE,
}

_EXAMPLES = 20

# The settings that select all utterances of a split.
_WHOLE = {"utterances": 0, "keep": 1.0, "hours": 0.0, "alpha": 1.0, "score_utterances": 0}


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
    for name in ("beam", "path_beam"):
        if settings[name] > units:
            raise BadInput(f"{name}={settings[name]} over {units:,} units: allowed: as many as there are, or fewer")
    if settings["hours"] and settings["keep"] != 1:
        raise BadInput(f"keep={settings['keep']} with hours={settings['hours']}: allowed: one of the two")
    for split in ("train", "valid", settings["split"]):
        if split not in speech.splits:
            raise BadInput(f"speech {name!r}: no split {split!r}: allowed: one, next to {', '.join(speech.splits)}")
    return speech


def run(cell: Cell, progress: Progress) -> Result:
    save_to = network_path(cell)
    speech, provenance = data_of(cell, load, progress)
    samples = untrained(cell, speech, features.of_corpus(speech, progress=progress))
    training = Training(samples, _training_utterances(cell, speech))
    training.run(progress)
    measurements = training.measurements()
    transcripts, real_time_factor = samples.transcripts(progress)
    score = _scored(cell, speech, transcripts)
    utterances = _utterances(cell, speech)
    score.detail.update(
        ids=[utterance.id for utterance in utterances],
        transcripts=transcripts,
        skipped={reason: len(ids) for reason, ids in speech.skipped.items()},
    )
    if cell.dataset in registry.datasets() and registry.dataset(cell.dataset).may_quote:
        score.detail["examples"] = _examples(speech, utterances, transcripts)
    if save_to is not None:  # last, so that a cell that fails can be measured again
        progress(f"network to {save_to}")
        scores = {"split": cell.settings["split"], score.quantity: score.value, "perplexity": measurements[0].value}
        sha256 = network_folder.save(
            save_to,
            samples.model,
            samples.model.spec,
            speech.vocabulary.units,
            cell,
            {**provenance, "longest": samples.longest},
            scores,
        )
        score.detail["network"] = {"name": save_to.name, "sha256": sha256}
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
    split = found.detail["split"] = cell.settings["split"]
    for name in ("shared_with_training", "transcripts_in_training"):
        if split in (shares := getattr(speech, name)):
            found.detail[name] = shares[split]
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


def untrained(cell: Cell, speech: Speech, frames: features.Features) -> Recognition:
    """Return the utterances of a cell with a new recognizer."""
    training_P = _training_utterances(cell, speech)
    scored = {split: _scored_utterances(cell, speech, split) for split in ("valid", cell.settings["split"])}
    texts = recognition.encoded(speech, ("train", *scored))
    training_texts = [texts["train"][number] for number in training_P]
    units = speech.vocabulary
    options = with_words(check_options(registry.definition(cell.method), cell.options), units.units)
    if cell.options.get("interval"):
        raise BadInput(
            f"option interval={cell.options['interval']} of {cell.method}: allowed in speech: 0, because "
            "clusters are not re-organized there"
        )
    if "interval" in options:
        options["interval"] = 0
    options = with_pairs(options, np.concatenate(training_texts), len(units.units))
    counts_V = speech.counts_V
    if cell.settings["counts"] == "per_language":
        spoken = [utterance.language for utterance in speech.splits["train"]]
        counts_V = vocabulary.per_language(texts["train"], spoken, len(counts_V))
    spec = spec_of(cell, counts_V, options)
    model: Recognizer = layers.create_network(cell.framework, spec, recognizers.config_of(cell, units.end), cell.device)
    return Recognition(
        cell,
        model,
        speech,
        frames,
        texts,
        scored,
        training_P,
        batch=min(cell.settings["batch"], len(training_P)),
        longest=cell.settings["longest"] or max(map(len, training_texts)),
    )


def _held_out(saved: SavedNetwork, request: Request, progress: Progress) -> HeldOutSamples:
    """Return the utterances that a network was scored on, or those of another split, dataset or setting.

    Raises:
        BadInput: The dataset does not exist, has no such split, or is not the one that the network was trained on.
    """
    cell, is_own = evaluation.cell_for(saved, request, _WHOLE), request.dataset is None
    speech = _speech_for(saved, cell, is_own, progress)
    evaluation.check_split(speech.name, cell.settings["split"], speech.splits)
    skipped = {reason: len(ids) for reason, ids in speech.skipped.items()}
    return HeldOutSamples(cell, is_own, speech.name, skipped)


def _speech_for(saved: SavedNetwork, cell: Cell, is_own: bool, progress: Progress) -> Speech:
    """Return the corpus of the cell in the units of a network, in which other units of another corpus are <unk>."""
    if is_own:
        settings = {**cell.settings, "split": saved.scores["split"]}
        speech = load(cell.dataset, saved.spec.vocab, settings, progress)
        evaluation.check_own(saved, speech, (speech.vocabulary.units, saved.words))
        return speech
    settings = cell.settings
    units = Vocabulary(settings["units"], tuple(saved.words), saved.spec.counts, settings["with_language"])
    return speech_corpora.load(cell.dataset, vocabulary=units, outside="unknown", progress=progress)


def _evaluate(folder: Path, framework: str, device: str, held_out: HeldOutSamples) -> Scores:
    """Decode and score utterances with a saved network, in the process of its framework.

    Raises:
        BadInput: The framework has no such device.
    """
    saved, model = evaluation.opened(folder, framework, device, Recognizer)
    cell = dataclasses.replace(held_out.cell, framework=framework, device=device)
    speech = _speech_for(saved, cell, held_out.is_own, lambda line: None)
    split = cell.settings["split"]
    scored = {split: _scored_utterances(cell, speech, split)}
    samples = Recognition(
        cell,
        model,
        speech,
        features.of_corpus(speech),
        recognition.encoded(speech, [split]),
        scored,
        batch=cell.settings["batch"],
        longest=cell.settings["longest"] or saved.data["longest"],
    )
    transcripts, _ = samples.transcripts(lambda line: None)
    score = _scored(cell, speech, transcripts)
    field = "phones" if speech.vocabulary.kind == "phones" else "text"
    records = [
        {"id": each.id, "language": each.language, field: ours, "reference": speech.transcript(each)}
        for each, ours in zip(_utterances(cell, speech), transcripts, strict=True)
    ]
    values = {score.quantity: score.value, "perplexity": samples.perplexity(split)}
    return Scores(values, "utterances", len(records), records)


TASK = Task(
    SETTINGS,
    run,
    load,
    check=recognition.check_paths,
    evaluation=Evaluation(_held_out, _evaluate, ("beam", "longest", "score_utterances", *recognition.SETTINGS)),
)
