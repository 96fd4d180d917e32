"""Documents: paragraph vectors with any output layer, scored by triplets of documents with labels.

The vector of a document predicts each of its words (PV-DBOW, Le and Mikolov 2014). In the joint objective, steps for
documents alternate with steps of skip-gram, with one table of input vectors for words and documents and one output
layer (Dai, Olah, Le and Corrado 2014). Documents that are scored are not trained on: their vectors are inferred, with
the output layer fixed. A self-organizing layer keeps its initial clusters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers, registry
from vocabench.harness.datasets.documents import encoded_documents
from vocabench.harness.datasets.documents.encoded_documents import EncodedDocuments
from vocabench.harness.datasets.text.corpora import OWN_RULE
from vocabench.harness.metrics import triplets
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.run.settings import Setting
from vocabench.harness.tasks.shared import document_baselines, document_pairs
from vocabench.harness.tasks.shared.bags import Pairs
from vocabench.harness.tasks.shared.data import Progress, data_of
from vocabench.harness.tasks.shared.optimizer import optimizer_of
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.spec import spec_of
from vocabench.harness.tasks.shared.task import Task
from vocabench.harness.tasks.shared.text import with_words
from vocabench.impls.models.bag_model import BagModel, BagModelConfig
from vocabench.impls.optimizers import NAMES
from vocabench.impls.options import Choice, Number
from vocabench.impls.spec import Arrays, LayerSpec, check_options

PV_DBOW, JOINT = "pv_dbow", "pv_dbow_joint"

SETTINGS: dict[str, Setting] = {
    "objective": Choice(PV_DBOW, (PV_DBOW, JOINT), "documents alone, or in turn with skip-gram"),
    "window": Number(5, 1, 1000, "words on either side, for skip-gram and the word vectors of averages"),
    "epochs": Number(3, 1, 10**6, "passes over the words of the training documents"),
    "inference_epochs": Number(5, 1, 10**6, "passes over the words of the test documents"),
    "optimizer": Choice("adagrad", NAMES, "the update rule"),
    "learning_rate": Number(0.05, 0.0, 1e6, "step size"),
    "text_rule": Choice(OWN_RULE, encoded_documents.RULES, "tokenization; that of the dataset by default"),
    "min_count": Number(3, 1, 10**9, "occurrences that a word needs if no vocabulary size is given"),
    "triplets": Number(10_000, 1, 10**9, "number of triplets of test documents"),
    **document_baselines.SETTINGS,
}


def load(name: str, vocab: int | None, settings: Mapping[str, Any], progress: Progress) -> EncodedDocuments:
    """Load the documents.

    Raises:
        BadInput: As in `encoded_documents.load`, or the labels of the test documents give no triplet.
    """
    data = encoded_documents.load(
        name, vocab=vocab, min_count=settings["min_count"], rule=settings["text_rule"], progress=progress
    )
    triplets.draw(data.splits["test"].labels_N, 1)
    return data


def run(cell: Cell, progress: Progress) -> Result:
    data, provenance = data_of(cell, load, progress)
    provenance["text_rule"] = data.rule
    if cell.method in document_baselines.METHODS:
        started = time.perf_counter()
        vectors_NE = document_baselines.vectors(cell.method, data, dim=cell.dim, settings=cell.settings, seed=cell.seed)
        seconds, detail = time.perf_counter() - started, {}
    else:
        training = _train(cell, data, progress)
        inference = _infer(cell, data, training, progress)
        vectors_NE = inference.params["input"]
        seconds = training.seconds
        detail = {
            "objective": cell.settings["objective"],
            "curve": training.curve,
            "inference": {"seconds": inference.seconds, "curve": inference.curve},
            "formulation": layers.form_label(cell.framework, training.spec, cell.device),
        }
    return Result([_score(cell, data, vectors_NE, detail), Measurement("train_seconds", seconds)], {}, provenance)


def _score(cell: Cell, data: EncodedDocuments, vectors_NE: NDArray, detail: Mapping[str, Any]) -> Measurement:
    drawn = triplets.draw(data.splits["test"].labels_N, cell.settings["triplets"])
    told = {
        "split": "test",
        "shared_with_training": data.shared_with_training["test"],
        "triplets": len(drawn),
        "documents": drawn.documents,
        "labels": drawn.labels,
        "ignored_labels": drawn.ignored,
    }
    score = triplets.accuracy(vectors_NE, drawn)
    return Measurement("triplet_accuracy", score.value, low=score.low, high=score.high, detail={**told, **detail})


@dataclass
class _Trained:
    """A trained model.

    Attributes:
        spec: The output layer.
        params: Parameters in canonical form.
        curve: Mean loss of each epoch.
        seconds: Time of all steps.
    """

    spec: LayerSpec
    params: Arrays = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0


def _train(cell: Cell, data: EncodedDocuments, progress: Progress) -> _Trained:
    """Train the vectors of the training documents, those of words if they are trained too, and the output layer."""
    settings, documents = cell.settings, data.splits["train"]
    options = with_words(check_options(registry.definition(cell.method), cell.options), data.words)
    spec = spec_of(cell, data.counts_V, options)
    joint = settings["objective"] == JOINT
    first = spec.vocab if joint else 0  # the input vectors of words come before those of documents
    config = BagModelConfig(inputs=first + len(documents), optimizer=optimizer_of(settings), seed=cell.seed)
    model = layers.create_network(cell.framework, spec, config, cell.device)
    rng = np.random.default_rng([cell.seed, 15])
    batch = min(cell.tokens, len(documents.texts.ids_T))
    words = document_pairs.of_neighbours(documents, settings["window"], batch, rng) if joint else None

    def epoch() -> Iterator[Pairs]:
        return document_pairs.of_documents(documents, batch, rng, first)

    return _fit(_Trained(spec), model, epoch, words, settings["epochs"], "training", progress)


def _infer(cell: Cell, data: EncodedDocuments, training: _Trained, progress: Progress) -> _Trained:
    """Train the vectors of the test documents below the trained output layer, which stays as it is."""
    settings, documents = cell.settings, data.splits["test"]
    config = BagModelConfig(inputs=len(documents), optimizer=optimizer_of(settings), seed=cell.seed, frozen_output=True)
    model = layers.create_network(cell.framework, training.spec, config, cell.device)
    model.load({**training.params, "input": config.initial_body(training.spec)["input"]})
    rng = np.random.default_rng([cell.seed, 16])
    batch = min(cell.tokens, len(documents.texts.ids_T))

    def epoch() -> Iterator[Pairs]:
        return document_pairs.of_documents(documents, batch, rng)

    return _fit(_Trained(training.spec), model, epoch, None, settings["inference_epochs"], "inference", progress)


def _fit(
    trained: _Trained,
    model: BagModel,
    epoch: Callable[[], Iterator[Pairs]],
    words: Iterator[Pairs] | None,
    epochs: int,
    name: str,
    progress: Progress,
) -> _Trained:
    """Take a step for each batch of an epoch, each followed by one for a batch of `words` if there are any.

    Raises:
        FloatingPointError: The mean loss of an epoch is not finite.
    """
    step = 0
    for number in range(1, epochs + 1):
        started = time.perf_counter()
        losses: dict[str, list[SupportsFloat]] = {"train_loss": []}
        for pairs in epoch():
            losses["train_loss"].append(model.step(*pairs))
            if words is not None and (neighbours := next(words, None)) is not None:
                losses.setdefault("word_loss", []).append(model.step(*neighbours))
            step += 1
            if step % 100 == 0:
                # Waiting for the device here also bounds the queue of an asynchronous framework.
                loss = float(losses["train_loss"][-1])
                progress(f"{name} epoch {number}/{epochs} step {step} loss {loss:.3f}")
        means = {key: float(np.mean([float(loss) for loss in values])) for key, values in losses.items()}
        trained.seconds += time.perf_counter() - started
        if not np.isfinite(list(means.values())).all():
            raise FloatingPointError(f"{name} loss is {means} in epoch {number}")
        trained.curve.append({"epoch": number, "seconds": trained.seconds, **means})
    trained.params = model.parameters()
    return trained


TASK = Task(
    SETTINGS,
    run,
    load,
    extra_methods=document_baselines.METHODS,
    seeded_methods=document_baselines.METHODS,
)
