"""Perplexity on words that training never saw, for layers that compute the vectors of words from their spelling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers
from vocabench.harness.datasets.text.corpora import Corpus
from vocabench.harness.datasets.text.tokenization import UNK
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.impls.contract import Layer
from vocabench.impls.errors import BadInput
from vocabench.impls.resizing import carried_over, resized

Windows = Iterable[tuple[NDArray[np.int32], NDArray[np.int32]]]  # inputs and targets (B, T)


def check(method: str, options: Mapping[str, object], words: int, wide: Corpus) -> None:
    """Refuse what cannot be measured.

    Raises:
        BadInput: The layer does not spell words, or the wide vocabulary has no further words.
    """
    if "words" not in options or "char_dim" not in options:
        raise BadInput(f"unseen_vocab={len(wide.words)} with {method}: allowed: 0, or a layer that spells words")
    if len(wide.words) <= words:
        raise BadInput(f"unseen_vocab={len(wide.words)} with {words:,} words: allowed: more than those of the model")


def perplexity(
    cell: Cell, layer: Layer, corpus: Corpus, wide: Corpus, hidden: Callable[[NDArray], NDArray], windows: Windows
) -> Measurement:
    """Measure the perplexity of a layer on the words of a text that are outside of its vocabulary.

    The layer is resized to the wide vocabulary, with the vectors of the further words from their spelling. The model
    below reads them as <unk>, as in training.

    Args:
        cell: The cell, with the framework and the device.
        layer: The trained layer.
        corpus: The corpus with the vocabulary of the model.
        wide: The same corpus with a larger vocabulary.
        hidden: Maps inputs (B, T) in the ids of `corpus` to hidden vectors (B*T, D).
        windows: Inputs and targets of the scored text in the ids of `wide`.

    Returns:
        `unseen_perplexity`, over the tokens whose word is neither in the vocabulary nor <unk> in the wide one. Its
        detail has the number of these tokens and words, and the perplexity on the same tokens if each further word had
        an equal share of the probability of <unk>.
    """
    known, spec = {word: number for number, word in enumerate(corpus.words)}, layer.spec
    further = [word for word in wide.words if word not in known]
    words = [*corpus.words, *further]
    of_wide = np.array([known.get(word, known[UNK]) for word in wide.words], np.int32)
    place = {word: number for number, word in enumerate(words)}
    in_words = np.array([place[word] for word in wide.words])

    counts = np.concatenate([spec.counts, np.zeros(len(further), np.int64)])
    made = resized(spec, counts, words=words)
    other = layers.from_spec(cell.framework, made, cell.device)
    other.load(carried_over(spec, made, layer.parameters()))

    nll, even_nll, tokens, unknown = 0.0, 0.0, 0, known[UNK]
    for inputs_BT, targets_BT in windows:
        targets_N = in_words[targets_BT.ravel()]
        unseen_R = np.flatnonzero(targets_N >= len(corpus.words))
        if not len(unseen_R):
            continue
        hidden_RD = hidden(of_wide[inputs_BT])[unseen_R]
        nll -= float(other.target_log_probs(hidden_RD, targets_N[unseen_R]).sum())
        even_nll -= float(layer.target_log_probs(hidden_RD, np.full(len(unseen_R), unknown)).sum())
        tokens += len(unseen_R)
    if not tokens:
        raise BadInput(f"unseen_vocab={len(wide.words)}: no further word is in the scored text: allowed: more words")
    even = float(np.exp(even_nll / tokens + np.log(len(further))))
    detail = {"tokens": tokens, "words": len(further), "even_perplexity": even}
    return Measurement("unseen_perplexity", float(np.exp(nll / tokens)), detail=detail)
