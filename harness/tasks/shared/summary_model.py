"""The language model of the summaries, from which a summarizer's layer takes what has to be learned before it.

As in SOHSM section 5, clusters are learned by a language model on the training summaries, then held fixed. Trees and
classes that are made from word vectors take those from a language model on the summaries too.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from numpy.typing import NDArray

from vocabench.harness import registry
from vocabench.harness.datasets.pairs.encoded import EncodedPairs
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
    """The options of the cell's layer, with clusters or word vectors from a language model where it needs such; and
    what the row tells of that model.

    Args:
        cell: A cell of the summarization task.
        data: Its pairs.
        training_P: Those of the training split that are trained on.
        progress: Called with a line of text now and then.

    Raises:
        BadInput: The language model ends before its clusters are first made anew.
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
            "fewer batches, more of the setting cluster_epochs, or 0 for the first clusters"
        )
    assert model.cluster_V is not None
    options = dict(definition.held(options, {"cluster": model.cluster_V}))
    return options, model.told({"cluster": "learned", "interval": 0})


def _settings(cell: Cell) -> dict[str, Any]:
    """Those of SOHSM section 4.2 but for what the cell says."""
    own = {name: setting.default for name, setting in language_modelling.SETTINGS.items()}
    return own | {
        "epochs": cell.settings["cluster_epochs"],
        "batch": cell.settings["cluster_batch"],
        "embedding": cell.settings["embedding"],
        "figure1_tokens": 0,
    }


def _corpus(data: EncodedPairs, training_P: NDArray) -> Corpus:
    """The summaries one after the other, each with its <eos>."""
    summaries = data.summaries
    splits = {"train": summaries.splits["train"].joined(training_P), "valid": summaries.splits["valid"].ids_T}
    return Corpus(data.name, data.sha256, data.licence, data.versions, summaries.words, data.counts_V, splits)
