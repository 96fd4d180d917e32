"""The scores of word vectors as measurements of a row."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.text import corpora
from vocabench.harness.metrics import word_vectors as metrics
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.word_vectors import cldr_analogies, factorisation, inflections, pmi, probe
from vocabench.harness.word_vectors.question_files import Section
from vocabench.impls.options import path_of

_FEWEST_FREQUENT = 20


def of_vectors(cell: Cell, corpus: corpora.Corpus, vectors_VE: NDArray) -> list[Measurement]:
    """Return the scores of word vectors: analogies, similarity if there is a file, and the probe of large vocabularies.

    A word whose vector is zero counts as unknown: it was not in a file, or a library has not learned it.

    Raises:
        BadInput: A file cannot be read, or too few words are frequent or rare.
    """
    settings = cell.settings
    known = np.flatnonzero(vectors_VE.any(axis=1)).tolist()
    word_ids = {corpus.words[number].lower(): number for number in reversed(known)}
    given = settings["analogies"]
    asked = path_of(given) if given else built_in(corpus, word_ids)
    found = _measured("analogy_accuracy", metrics.analogies(asked, vectors_VE, word_ids))
    if settings["similarity"]:
        score = metrics.similarity(path_of(settings["similarity"]), vectors_VE, word_ids)
        found += _measured("similarity_correlation", score)
    if threshold := settings["frequent"] or _tenth(corpus.counts_V):
        result = probe.frequency(vectors_VE, corpus.counts_V, threshold, cell.seed)
        detail = {"frequent": threshold, "accuracy": result.accuracy, "tested": result.tested}
        found.append(Measurement("frequency_probe", result.area, detail=detail))
    return found


def of_factorisation(cell: Cell, corpus: corpora.Corpus, input_VD: NDArray, output_VD: NDArray) -> Measurement:
    """Return the correlation of products of input and output vectors with the PMI of the pairs in the text."""
    train_T = np.asarray(corpus.splits["train"])
    pairs = pmi.pair_counts(train_T, len(corpus.words), cell.settings["window"])
    result = factorisation.correlation(input_VD, output_VD, pairs, negatives=1)
    return Measurement("pmi_correlation", result.value, detail={"pairs": result.pairs})


def built_in(corpus: corpora.Corpus, word_ids: Mapping[str, int]) -> Sequence[Section]:
    """Return questions about the words of any text: their endings, and countries if Babel is installed."""
    countries = cldr_analogies.questions(word_ids) if importlib.util.find_spec("babel") else []
    return [*countries, *inflections.questions(corpus.words, corpus.counts_V)]


def _tenth(counts_V: NDArray[np.int64]) -> int:
    """Return how often the words of the most frequent tenth occur; 0 if the vocabulary is too small for a probe."""
    tenth = len(counts_V) // 10
    return int(np.partition(counts_V, -tenth)[-tenth]) if tenth >= _FEWEST_FREQUENT else 0


def _measured(quantity: str, score: metrics.Score) -> list[Measurement]:
    """Return a measurement, or none if no question could be used."""
    if score.value is None:
        return []
    detail: dict[str, Any] = {"used": score.used, "skipped": score.skipped, "sections": score.detail}
    return [Measurement(quantity, score.value, detail=detail)]
