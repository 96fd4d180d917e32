"""Word vectors: CBOW, skip-gram or PV-DBOW with any output layer, and other ways to word vectors for reference.

They are scored by held-out perplexity, analogies, and word similarities if a file is given. In training the window size
is drawn between 1 and `window`, as in word2vec; held-out text is scored with full windows. A document of PV-DBOW is
`document` words of running text, of which every tenth is held out and scored. A self-organizing layer keeps its initial
clusters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.text import corpora
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.run.settings import Setting
from vocabench.harness.tasks.shared import bags, text
from vocabench.harness.tasks.shared.data import Progress
from vocabench.harness.tasks.shared.destinations import new_path
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.task import Task
from vocabench.harness.word_vectors import glove, peers, scores, sppmi, vector_files
from vocabench.harness.word_vectors.combining import COMBINATIONS, combined
from vocabench.harness.word_vectors.training import DESCENTS, UPDATES, Training
from vocabench.impls.errors import BadInput
from vocabench.impls.optimizers import NAMES
from vocabench.impls.options import Choice, Destination, File, Number, path_of

SETTINGS: dict[str, Setting] = {
    "objective": Choice("cbow", bags.OBJECTIVES, "what predicts a word: its context, one neighbour, its document"),
    "window": Number(5, 1, 1000, "words on either side"),
    "document": Number(100, 10, 10**9, "words of a document of pv_dbow"),
    "epochs": Number(1, 1, 10**6, "passes over the training text, or over the pairs of GloVe"),
    "updates": Choice("batch", UPDATES, "a step of the optimizer for each batch, or as in word2vec for each example"),
    "descent": Choice("sgd", DESCENTS, "the update rule of examples: the same rate for all vectors, or one for each"),
    "optimizer": Choice("adagrad", NAMES, "the update rule of batches"),
    "learning_rate": Number(0.1, 0.0, 1e6, "step size; 0.025 to 0.2 for examples"),
    "final_learning_rate": Number(1e-4, 0.0, 1e6, "step size at the end, to which it falls linearly for examples"),
    "threads": Number(1, 1, 1024, "threads for examples; with more than one, results differ from run to run"),
    **text.SETTINGS,
    "subsample": Number(0.0, 0.0, 1.0, "share of the text from which on a word is sub-sampled; 0 keeps all"),
    "scored": Number(20_000, 1, 10**9, "number of scored held-out positions"),
    "combine": Choice("input", COMBINATIONS, "the vectors that are scored and written, from input and output vectors"),
    "most": Number(100.0, 1e-3, 1e9, "x_max of GloVe"),
    "negatives": Number(5, 1, 10**6, "samples for each target of gensim and fastText, and k of SPPMI"),
    "power": Choice(0.5, sppmi.POWERS, "exponent of the singular values of SPPMI"),
    "analogies": File("questions in the format of word2vec's questions-words.txt; built-in ones by default"),
    "similarity": File("word pairs with scores in the format of WordSim-353"),
    "frequent": Number(
        0, 0, 10**9, "occurrences of the words that the probe calls frequent; 0 for a tenth of the vocabulary"
    ),
    "factorisation": Choice(False, (False, True), "whether to compare products of vectors with the PMI of pairs"),
    "given": File("word vectors that the method `given` scores, as .txt, .vec, .bin or .npz"),
    "vectors": Destination(
        "file to write the vectors to, whose name may contain {method}, {framework} and {seed}",
        suffixes=vector_files.SUFFIXES,
    ),
}


@dataclass(frozen=True)
class Learned:
    """What a method has learned.

    Attributes:
        measurements: Its own measurements.
        input_VD: Word vectors, or None if the vectors stand for documents.
        output_VD: The vectors of context words, if there is one for each word.
    """

    measurements: list[Measurement]
    input_VD: NDArray | None
    output_VD: NDArray | None = None


def run(cell: Cell, progress: Progress) -> Result:
    corpus, data = text.data_of(cell, progress)
    path = new_path(cell, "vectors", "vectors-{method}-{framework}.bin")
    learned = _LEARN.get(cell.method, _by_model)(cell, corpus, progress)
    measurements = learned.measurements
    if learned.input_VD is None:
        return Result(measurements, {}, data)
    vectors_VE = _combined(cell, learned)
    measurements += scores.of_vectors(cell, corpus, vectors_VE)
    if cell.settings["factorisation"]:
        if learned.output_VD is None:
            raise BadInput(f"factorisation=True with {cell.method}: allowed: a method with a vector for each context")
        measurements.append(scores.of_factorisation(cell, corpus, learned.input_VD, learned.output_VD))
    if path is not None:
        vector_files.write(path, corpus.words, vectors_VE)
    return Result(measurements, {}, data)


def _by_model(cell: Cell, corpus: corpora.Corpus, progress: Progress) -> Learned:
    training = Training(cell, corpus)
    training.run(progress)
    if cell.settings["objective"] == "pv_dbow":
        return Learned(training.measurements(), None)
    return Learned(training.measurements(), *training.vectors())


def _by_glove(cell: Cell, corpus: corpora.Corpus, progress: Progress) -> Learned:
    settings, started = cell.settings, time.perf_counter()
    counts = glove.cooccurrences(corpus.splits["train"], len(corpus.words), settings["window"])
    factors = glove.fit(
        counts,
        len(corpus.words),
        cell.dim,
        epochs=settings["epochs"],
        most=settings["most"],
        seed=cell.seed,
        progress=progress,
    )
    loss = Measurement("glove_loss", factors.losses[-1], detail={"curve": factors.curve, "pairs": counts.nnz})
    return Learned([loss, *_pace(cell, corpus, time.perf_counter() - started)], factors.input_VD, factors.output_VD)


def _by_sppmi(cell: Cell, corpus: corpora.Corpus, progress: Progress) -> Learned:
    settings, started = cell.settings, time.perf_counter()
    vectors_VD = sppmi.vectors(
        corpus.splits["train"],
        len(corpus.words),
        cell.dim,
        window=settings["window"],
        negatives=settings["negatives"],
        power=settings["power"],
        seed=cell.seed,
    )
    seconds = time.perf_counter() - started
    return Learned([Measurement("train_seconds", seconds, [seconds])], vectors_VD)


def _by_peer(cell: Cell, corpus: corpora.Corpus, progress: Progress) -> Learned:
    train_T = np.asarray(corpus.splits["train"])
    learned = peers.learn(peers.PEERS[cell.method], train_T, len(corpus.words), cell.dim, cell.settings, cell.seed)
    found = _pace(cell, corpus, learned.seconds)
    found[0].detail["version"] = learned.version
    return Learned(found, learned.vectors_VD)


def _by_file(cell: Cell, corpus: corpora.Corpus, progress: Progress) -> Learned:
    """Take the vectors of a file; words that it lacks have a vector of zero, and count as unknown."""
    if not cell.settings["given"]:
        raise BadInput("method 'given' without vectors: allowed: -s given=FILE")
    given = vector_files.read(path_of(cell.settings["given"]))
    row_of = {word: row for row, word in enumerate(given.words)}
    vectors_VD = np.zeros((len(corpus.words), given.vectors_VD.shape[1]), np.float32)
    known = [(number, row_of[word]) for number, word in enumerate(corpus.words) if word in row_of]
    if not known:
        raise BadInput(f"{path_of(cell.settings['given'])}: none of its words is in {cell.dataset}: allowed: some")
    numbers, rows = np.array(known).T
    vectors_VD[numbers] = given.vectors_VD[rows]
    return Learned([Measurement("known_words", len(known) / len(corpus.words))], vectors_VD)


# Methods without an output layer of ours, which run for comparison.
_LEARN: dict[str, Callable[[Cell, corpora.Corpus, Progress], Learned]] = {
    "glove": _by_glove,
    "sppmi_svd": _by_sppmi,
    "given": _by_file,
    **dict.fromkeys(peers.PEERS, _by_peer),
}


def _pace(cell: Cell, corpus: corpora.Corpus, seconds: float) -> list[Measurement]:
    words = len(corpus.splits["train"]) * cell.settings["epochs"]
    return [
        Measurement("train_seconds", seconds, [seconds]),
        Measurement("words_per_second", words / seconds),
    ]


def _combined(cell: Cell, learned: Learned) -> NDArray:
    assert learned.input_VD is not None
    combine = cell.settings["combine"]
    if combine == "input":
        return learned.input_VD
    if learned.output_VD is None:
        raise BadInput(f"combine={combine} with {cell.method}: allowed: input, as it has no vector for each context")
    return combined(learned.input_VD, learned.output_VD, combine)


TASK = Task(
    SETTINGS,
    run,
    text.load,
    extra_methods=tuple(_LEARN),
    seeded_methods=tuple(name for name in _LEARN if name != "given"),
    selected_methods=("given", *(name for name in peers.PEERS if name.startswith("fasttext"))),
)
