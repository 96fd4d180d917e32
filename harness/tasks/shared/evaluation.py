"""Evaluation of a saved language model on text, in any framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import network_folder, registry
from vocabench.harness.datasets.text import corpora, tokenization
from vocabench.harness.datasets.text.tokenization import EOS, UNK
from vocabench.harness.network_folder import SavedNetwork
from vocabench.harness.tasks.shared import text_scores
from vocabench.harness.tasks.shared.data import Progress
from vocabench.impls.errors import BadInput


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


def text_of(saved: SavedNetwork, dataset: str | None, split: str | None, progress: Progress) -> HeldOutText:
    """Return the text that a network was scored on, or a split of another dataset in the words of the network.

    Args:
        saved: The network.
        dataset: Name or path of a dataset; None for the one that the network was trained on.
        split: Split of the dataset; None for the one that the network was scored on, or the validation text if another
            dataset has no such split.
        progress: Called with lines of text that report progress.

    Raises:
        BadInput: The dataset does not exist, has no such split, or is not the one that the network was trained on.
    """
    if dataset is None:
        name, splits = saved.cell.dataset, _own_splits(saved, progress)
    else:
        files = corpora.find(dataset, progress)
        name, splits = files.name, dict.fromkeys(files.files)
    if split is None:
        scored: str = saved.scores["split"]
        split = scored if scored in splits else "valid"
    if split not in splits:
        raise BadInput(f"split {split!r} of dataset {name!r}: allowed: {', '.join(splits)}")
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
    if corpus.sha256 != cell.dataset_sha256 or corpus.words != list(saved.words):
        raise BadInput(
            f"dataset {cell.dataset!r} is not the one that the network was trained on: allowed: the same text, with "
            f"sha256 {cell.dataset_sha256[:12]}..., or --dataset for another one"
        )
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


def evaluate(folder: Path, framework: str, device: str, ids_T: NDArray[np.int32]) -> TokenScores:
    """Score text with a saved network, in the process of its framework.

    Raises:
        BadInput: The framework has no such device.
    """
    devices = registry.adapter(framework).devices()
    if device not in devices:
        raise BadInput(f"device {device!r}: {framework} has none here: allowed: {', '.join(devices)}")
    saved = network_folder.load(folder)
    network = saved.network(framework, device)
    losses = text_scores.losses(network, ids_T, saved.cell.settings["steps"])
    return TokenScores(losses.targets_BT, -losses.nll_BT)
