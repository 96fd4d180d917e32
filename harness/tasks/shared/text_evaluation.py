"""Evaluation of a saved language model on text, in any framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import registry
from vocabench.harness.datasets.text import corpora, tokenization
from vocabench.harness.datasets.text.tokenization import EOS, UNK
from vocabench.harness.network_folder import SavedNetwork
from vocabench.harness.tasks.shared import text_scores
from vocabench.harness.tasks.shared.data import Progress
from vocabench.harness.tasks.shared.evaluation import Evaluation, Request, Scores, check_own, check_split, opened
from vocabench.impls.errors import BadInput
from vocabench.impls.models.language_model import LanguageModel


@dataclass(frozen=True)
class HeldOutText:
    """Text that a saved network is scored on.

    Attributes:
        name: Name of its dataset.
        split: Its split of the dataset.
        ids_T: (T,) ids of its words in the vocabulary of the network.
        unknown: Share of <unk>.
    """

    name: str
    split: str
    ids_T: NDArray[np.int32]
    unknown: float

    @property
    def remark(self) -> str:
        return f", {100 * self.unknown:.2g} % of them <unk>"

    def details(self) -> dict[str, Any]:
        return {"unknown_share": self.unknown}


@dataclass(frozen=True)
class TokenScores:
    """The words that were scored, in B rows of the text, and their natural log-probabilities, (B, T) each."""

    ids_BT: NDArray[np.int32]
    log_probs_BT: NDArray[np.float64]

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.log_probs_BT.mean()))

    def sentences(self, words: Sequence[str]) -> Iterator[tuple[list[str], list[float]]]:
        """Yield the words of each sentence and their log-probabilities.

        A sentence ends with <eos>, or with its row. The perplexity of all of them is `perplexity`.
        """
        for ids_T, log_probs_T in zip(self.ids_BT, self.log_probs_BT, strict=True):
            tokens = [words[int(number)] for number in ids_T]
            ends = [place for place, token in enumerate(tokens, 1) if token == EOS or place == len(tokens)]
            for start, stop in zip([0, *ends], ends, strict=False):
                yield tokens[start:stop], log_probs_T[start:stop].tolist()


def text_of(saved: SavedNetwork, request: Request, progress: Progress) -> HeldOutText:
    """Return the text that a network was scored on, or a split of another dataset in the words of the network.

    Args:
        saved: The network.
        request: The request. Its split is by default the one that the network was scored on, or the validation text if
            another dataset has no such split.
        progress: Called with lines of text that report progress.

    Raises:
        BadInput: The dataset does not exist, has no such split, or is not the one that the network was trained on.
    """
    dataset, split = request.dataset, request.split
    if dataset is None:
        name, splits = saved.cell.dataset, _own_splits(saved, progress)
    else:
        files = corpora.find(dataset, progress)
        name, splits = files.name, dict.fromkeys(files.files)
    if split is None:
        scored: str = saved.scores["split"]
        split = scored if scored in splits else "valid"
    check_split(name, split, splits)
    ids_T = splits[split]
    if ids_T is None:
        # A user's text does not say how it is tokenized, so it is read as the training text was.
        rule = files.rule if dataset in registry.datasets() else saved.data.get("text_rule", files.rule)
        ids_T = _encoded(saved.words, files.files[split], rule)
    unknown = saved.words.index(UNK) if UNK in saved.words else -1
    return HeldOutText(name, split, ids_T, float((ids_T == unknown).mean()))


def _own_splits(saved: SavedNetwork, progress: Progress) -> Mapping[str, NDArray[np.int32]]:
    cell = saved.cell
    load = registry.task(cell.task).load
    assert load is not None
    corpus: corpora.Corpus = load(cell.dataset, cell.vocab, cell.settings, progress)
    check_own(saved, corpus, (corpus.words, saved.words))
    return corpus.splits


def _encoded(words: Sequence[str], path: Path, rule: str) -> NDArray[np.int32]:
    """Return the ids of the words of a file; words that the network does not know are <unk>."""
    ids = {word: number for number, word in enumerate(words)}
    if UNK not in ids:
        raise BadInput(f"a network without {UNK} on other text: allowed: the text that it was trained on")
    pieces = [[ids.get(word, ids[UNK]) for word in piece] for piece in tokenization.tokens(path, rule)]
    ids_T = np.array([number for piece in pieces for number in piece], np.int32)
    if not len(ids_T):
        raise BadInput(f"text file {path}: no words: allowed: text")
    return ids_T


def evaluate(folder: Path, framework: str, device: str, text: HeldOutText) -> Scores:
    """Score text with a saved network, in the process of its framework.

    Raises:
        BadInput: The framework has no such device.
    """
    saved, network = opened(folder, framework, device, LanguageModel)
    losses = text_scores.losses(network, text.ids_T, saved.cell.settings["steps"])
    scored = TokenScores(losses.targets_BT, -losses.nll_BT)
    records = [{"words": words, "log_probs": log_probs} for words, log_probs in scored.sentences(saved.words)]
    return Scores({"perplexity": scored.perplexity}, "tokens", scored.ids_BT.size, records)


EVALUATION = Evaluation(text_of, evaluate)
