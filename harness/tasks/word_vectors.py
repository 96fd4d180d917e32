"""Word vectors: CBOW, skip-gram or PV-DBOW with any output layer, and GloVe's factorization for reference.

They are scored by held-out perplexity, and by analogies and word similarities if their files are given. In training the
window size is drawn between 1 and `window`, as in word2vec; held-out text is scored with full windows. A document of
PV-DBOW is `document` words of running text, of which every tenth is held out and scored. A self-organizing layer keeps
its initial clusters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers, registry
from vocabench.harness.datasets.text import corpora
from vocabench.harness.metrics import word_vectors as metrics
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.run.settings import Setting
from vocabench.harness.tasks.shared import bags, glove
from vocabench.harness.tasks.shared.data import data_of
from vocabench.harness.tasks.shared.optimizer import optimizer_of
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.spec import spec_of
from vocabench.harness.tasks.shared.task import Task
from vocabench.harness.tasks.shared.text import load, with_words
from vocabench.impls.errors import BadInput
from vocabench.impls.models.bag_model import BagModel, BagModelConfig
from vocabench.impls.optimizers import NAMES
from vocabench.impls.options import Choice, File, Number, path_of
from vocabench.impls.spec import check_options

EXTRA_METHODS = ("glove",)  # the reference objective without an output layer, which counts pairs

SETTINGS: dict[str, Setting] = {
    "objective": Choice("cbow", bags.OBJECTIVES, "what predicts a word: its context, one neighbour, its document"),
    "window": Number(5, 1, 1000, "words on either side"),
    "document": Number(100, 10, 10**9, "words of a document of pv_dbow"),
    "epochs": Number(1, 1, 10**6, "passes over the training text, or over the pairs of GloVe"),
    "optimizer": Choice("adagrad", NAMES, "the update rule"),
    "learning_rate": Number(0.1, 0.0, 1e6, "step size"),
    "scored": Number(20_000, 1, 10**9, "number of scored held-out positions"),
    "most": Number(100.0, 1e-3, 1e9, "x_max of GloVe"),
    "analogies": File("questions in the format of word2vec's questions-words.txt"),
    "similarity": File("word pairs with scores in the format of WordSim-353"),
}

_HELD_OUT = 10  # every tenth word of a document


def run(cell: Cell, progress: Callable[[str], None]) -> Result:
    corpus, data = data_of(cell, load, progress)
    if cell.method in EXTRA_METHODS:
        measurements, vectors_VE = _of_glove(cell, corpus, progress)
    else:
        measurements, vectors_VE = _of_model(cell, corpus, progress)
    if vectors_VE is not None:
        measurements += _by_files(cell, corpus, vectors_VE)
    return Result(measurements, {}, data)


def _of_glove(cell: Cell, corpus: corpora.Corpus, progress: Callable[[str], None]) -> tuple[list[Measurement], NDArray]:
    started = time.perf_counter()
    vocab = len(corpus.counts_V)
    counts = glove.cooccurrences(corpus.splits["train"], vocab, cell.settings["window"])
    vectors_VD, losses = glove.factorise(
        counts,
        vocab,
        cell.dim,
        epochs=cell.settings["epochs"],
        most=cell.settings["most"],
        seed=cell.seed,
        progress=progress,
    )
    spent = time.perf_counter() - started
    detail = {"curve": losses, "pairs": counts.nnz}
    return [Measurement("glove_loss", losses[-1], detail=detail), Measurement("train_seconds", spent)], vectors_VD


def _of_model(
    cell: Cell, corpus: corpora.Corpus, progress: Callable[[str], None]
) -> tuple[list[Measurement], NDArray | None]:
    settings, by_document = cell.settings, cell.settings["objective"] == "pv_dbow"
    train_T = np.asarray(corpus.splits["train"])
    vocab = len(corpus.counts_V)
    options = with_words(check_options(registry.definition(cell.method), cell.options), corpus.words)
    spec = spec_of(cell, corpus.counts_V, options)
    inputs = -(-len(train_T) // settings["document"]) if by_document else vocab
    config = BagModelConfig(inputs=inputs, optimizer=optimizer_of(settings), seed=cell.seed)
    model = layers.create_network(cell.framework, spec, config, cell.device)

    rng = np.random.default_rng([cell.seed, 10])
    curve: list[dict[str, float]] = []
    spent, step = 0.0, 0
    for epoch in range(settings["epochs"]):
        started, losses = time.perf_counter(), []
        for bags_NJ, targets_N in _training(cell, train_T, rng):
            losses.append(model.step(bags_NJ, targets_N))
            step += 1
            if step % 100 == 0:
                # Waiting for the device here also bounds the queue of an asynchronous framework.
                progress(f"epoch {epoch + 1}/{settings['epochs']} step {step} loss {float(losses[-1]):.3f}")
        if not losses:
            raise BadInput(
                f"a split of {len(train_T):,} tokens gives fewer than the {cell.tokens:,} targets of one batch: "
                "allowed: more text"
            )
        mean_loss = float(np.mean([float(loss) for loss in losses]))
        spent += time.perf_counter() - started
        if not np.isfinite(mean_loss):
            raise FloatingPointError(f"training loss is {mean_loss} in epoch {epoch + 1}")
        curve.append({"epoch": epoch + 1, "seconds": spent, "train_loss": mean_loss})
        curve[-1]["perplexity"] = _perplexity(cell, corpus, model)
    detail: dict[str, Any] = {
        "objective": settings["objective"],
        "split": _split(cell, corpus)[0],
        "curve": curve,
        "formulation": layers.form_label(cell.framework, spec, cell.device),
    }
    found = [
        Measurement("perplexity", curve[-1]["perplexity"], detail=detail),
        Measurement("train_seconds", spent, [spent]),
    ]
    return found, None if by_document else model.parameters()["input"]


def _training(cell: Cell, train_T: NDArray, rng: np.random.Generator) -> Iterator[bags.Pairs]:
    """Yield batches of `tokens` targets in random order. Targets that do not fill a batch are left out."""
    settings, objective = cell.settings, cell.settings["objective"]
    at_T = rng.permutation(len(train_T))
    if objective == "pv_dbow":
        at_T = at_T[at_T % _HELD_OUT != _HELD_OUT - 1]
    window = settings["window"]
    kept_bags: list[NDArray[np.int32]] = []
    kept_targets: list[NDArray[np.int32]] = []
    waiting = 0
    for start in range(0, len(at_T), cell.tokens):
        at_N = at_T[start : start + cell.tokens]
        if objective == "pv_dbow":
            bags_NJ, targets_N = bags.pv_dbow(train_T, at_N, settings["document"])
        else:
            reach_N = rng.integers(1, window + 1, len(at_N))
            bags_NJ, targets_N = bags.of_text(objective, train_T, at_N, reach_N, window)
        kept_bags.append(bags_NJ)
        kept_targets.append(targets_N)
        waiting += len(targets_N)
        if waiting >= cell.tokens:
            bags_NJ, targets_N = np.concatenate(kept_bags), np.concatenate(kept_targets)
            whole = waiting - waiting % cell.tokens
            for begin in range(0, whole, cell.tokens):
                yield bags_NJ[begin : begin + cell.tokens], targets_N[begin : begin + cell.tokens]
            kept_bags, kept_targets, waiting = [bags_NJ[whole:]], [targets_N[whole:]], waiting - whole


def _split(cell: Cell, corpus: corpora.Corpus) -> tuple[str, NDArray]:
    """Return the held-out text: another split, or every tenth word of the documents."""
    if cell.settings["objective"] == "pv_dbow":
        return "train, every tenth word held out", np.asarray(corpus.splits["train"])
    name = "test" if "test" in corpus.splits else "valid"
    return name, np.asarray(corpus.splits[name])


def _perplexity(cell: Cell, corpus: corpora.Corpus, model: BagModel) -> float:
    settings, objective = cell.settings, cell.settings["objective"]
    _, ids_T = _split(cell, corpus)
    at_T = np.arange(len(ids_T))
    if objective == "pv_dbow":
        at_T = at_T[at_T % _HELD_OUT == _HELD_OUT - 1]
    at_T = np.random.default_rng([cell.seed, 11]).permutation(at_T)[: settings["scored"]]
    nll, targets = 0.0, 0
    for start in range(0, len(at_T), cell.tokens):
        at_N = at_T[start : start + cell.tokens]
        if objective == "pv_dbow":
            pairs = bags.pv_dbow(ids_T, at_N, settings["document"])
        else:
            window = settings["window"]
            pairs = bags.of_text(objective, ids_T, at_N, np.full(len(at_N), window), window)
        nll += model.evaluate(*pairs)
        targets += len(pairs[1])
    return float(np.exp(nll / targets))


def _by_files(cell: Cell, corpus: corpora.Corpus, vectors_VE: NDArray) -> list[Measurement]:
    word_ids = {word.lower(): number for number, word in reversed(list(enumerate(corpus.words)))}
    found = []
    for setting, quantity, metric in (
        ("analogies", "analogy_accuracy", metrics.analogies),
        ("similarity", "similarity_correlation", metrics.similarity),
    ):
        if cell.settings[setting]:
            score = metric(path_of(cell.settings[setting]), vectors_VE, word_ids)
            detail = {"used": score.used, "skipped": score.skipped, "sections": score.detail}
            if score.value is not None:
                found.append(Measurement(quantity, score.value, detail=detail))
    return found


TASK = Task(SETTINGS, run, load, extra_methods=EXTRA_METHODS)
