"""The language model of the summaries, which provides learned clusters or word vectors for the summarizer's layer.

As in SOHSM section 5, a language model on the training summaries learns the clusters, which then stay fixed. Trees and
classes that are built from word vectors take these from a language model on the summaries too.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from numpy.typing import NDArray

from vocabench.harness import registry
from vocabench.harness.datasets.pairs.encoded_pairs import EncodedPairs
from vocabench.harness.datasets.text.corpora import Corpus
from vocabench.harness.run.cells import Cell
from vocabench.harness.tasks import language_modelling
from vocabench.harness.tasks.shared.data import Progress
from vocabench.harness.tasks.shared.text import with_pairs, with_words
from vocabench.impls.errors import BadInput
from vocabench.impls.spec import check_options


def layer_options(
    cell: Cell, data: EncodedPairs, training_P: NDArray, progress: Progress
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the cell's layer, and the entries that the row has for the language model.

    If the layer needs clusters or word vectors, they come from a language model that is trained first.

    Args:
        cell: A cell of the summarization task.
        data: The pairs of the cell.
        training_P: Indices of the training pairs.
        progress: Called with lines of text that report progress.

    Raises:
        BadInput: The language model ends before its first re-organization.
    """
    definition = registry.definition(cell.method)
    model_cell = dataclasses.replace(cell, task="language_modelling", settings=_settings(cell))
    corpus = _corpus(data, training_P)
    options = with_words(check_options(definition, cell.options), corpus.words)
    options = with_pairs(options, corpus.splits["train"], len(corpus.words))

    def say(text: str) -> None:
        progress(f"language model of the summaries: {text}")

    if not options.get("interval") or options["cluster"] is not None:
        return language_modelling.with_vectors(model_cell, corpus, options, say)
    model = language_modelling.Training(model_cell, corpus, options)
    model.run(say)
    if not model.reorganizations:
        raise BadInput(
            f"option interval={options['interval']}: the language model of the summaries ends before that: allowed: "
            "fewer batches, a larger setting cluster_epochs, or 0 for the initial clusters"
        )
    assert model.cluster_V is not None
    options = dict(definition.held(options, {"cluster": model.cluster_V}))
    return options, model.told({"cluster": "learned", "interval": 0})


def _settings(cell: Cell) -> dict[str, Any]:
    """Return the settings of SOHSM section 4.2, updated by those of the cell."""
    own = {name: setting.default for name, setting in language_modelling.SETTINGS.items()}
    return own | {
        "epochs": cell.settings["cluster_epochs"],
        "batch": cell.settings["cluster_batch"],
        "embedding": cell.settings["embedding"],
        "figure1_tokens": 0,
    }


def _corpus(data: EncodedPairs, training_P: NDArray) -> Corpus:
    """Concatenate the summaries, each with its <eos>."""
    summaries = data.summaries
    splits = {"train": summaries.splits["train"].joined(training_P), "valid": summaries.splits["valid"].ids_T}
    return Corpus(data.name, data.sha256, data.licence, data.versions, summaries.words, data.counts_V, splits)
