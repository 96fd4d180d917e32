"""Pairs as word ids: both vocabularies counted, both sides encoded once, then memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.pairs import collection
from vocabench.harness.datasets.pairs.collection import Pair, Pairs
from vocabench.harness.datasets.shared.local_files import Progress
from vocabench.harness.datasets.text import encode
from vocabench.harness.datasets.text.tokenization import EOS, UNK
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput

_FORMAT = 1  # of the cache: raised when the same pairs would be encoded otherwise


@dataclass(frozen=True)
class Ragged:
    """Texts of a split as ids: those of text p are `ids_T[starts_P[p] : starts_P[p + 1]]`.

    Attributes:
        ids_T: (tokens,) int32, memory-mapped.
        starts_P: (pairs + 1,) int64.
    """

    ids_T: NDArray[np.int32]
    starts_P: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts_P) - 1

    @property
    def lengths_P(self) -> NDArray[np.int64]:
        return np.diff(self.starts_P)

    def joined(self, chosen_P: NDArray[np.int64]) -> NDArray[np.int32]:
        """(tokens,) the texts chosen, one after the other."""
        if len(chosen_P) == len(self):
            return self.ids_T
        return np.concatenate([self.ids_T[self.starts_P[p] : self.starts_P[p + 1]] for p in chosen_P])

    def padded(self, chosen_B: NDArray[np.int64], width: int, padding: int) -> NDArray[np.int32]:
        """(B, width) the texts chosen, `padding` after the last word of each."""
        found_BT = np.full((len(chosen_B), width), padding, dtype=np.int32)
        for row, number in enumerate(chosen_B):
            ids_T = self.ids_T[self.starts_P[number] : self.starts_P[number + 1]]
            found_BT[row, : len(ids_T)] = ids_T
        return found_BT


@dataclass(frozen=True)
class Side:
    """The sources or the summaries of all pairs.

    Attributes:
        words: Id to word, by falling count, then alphabetically.
        counts_V: (V,) int64: occurrences in the training split.
        splits: Split to its texts.
    """

    words: list[str]
    counts_V: NDArray[np.int64]
    splits: Mapping[str, Ragged]


@dataclass(frozen=True)
class EncodedPairs:
    """
    Attributes:
        pairs: The texts, whole, with all their references.
        sources: What is read: the first words of each source.
        summaries: What is learned: the first words of the first reference, and <eos>.
    """

    pairs: Pairs
    sources: Side
    summaries: Side

    @property
    def name(self) -> str:
        return self.pairs.name

    @property
    def sha256(self) -> str:
        """Of the pairs."""
        return self.pairs.sha256

    @property
    def licence(self) -> str:
        return self.pairs.licence

    @property
    def versions(self) -> Mapping[str, str]:
        return self.pairs.versions

    @property
    def counts_V(self) -> NDArray[np.int64]:
        """(V,) of the summaries' words, which the output layer predicts."""
        return self.summaries.counts_V

    @property
    def end(self) -> int:
        """The id of <eos> among them."""
        return self.summaries.words.index(EOS)


def _silent(_: str) -> None:
    pass


def load(
    name: str,
    *,
    vocab: int | None = None,
    source_vocab: int | None = None,
    min_count: int = 2,
    max_source: int = 100,
    max_summary: int = 50,
    digits: bool = False,
    progress: Progress = _silent,
) -> EncodedPairs:
    """Count, encode and map pairs, from the cache where it has been done before.

    Words are parted at white space, as in text that is tokenized already, and counted in what is left of the training
    split after the cuts.

    Args:
        name: A dataset, or a path; see `layouts.own`.
        vocab: So many words of summaries, <unk> and <eos> among them; None keeps those that occur `min_count` times.
        source_vocab: So many words of sources, <unk> among them; None as above.
        min_count: See `vocab`.
        max_source: Words of a source that are read.
        max_summary: Words of a summary that are learned, <eos> not counted. References for scoring are not cut.
        digits: As `collection.load`.
        progress: Called with a line of text now and then.

    Raises:
        BadInput: As `collection.load`; no training split; a vocabulary below 2 or above the number of words there are.
    """
    pairs = collection.load(name, digits=digits, progress=progress)
    if "train" not in pairs.splits:
        raise BadInput(f"pairs {name}: no training split: allowed: a folder or a dataset with one")

    def source(pair: Pair) -> list[str]:
        return _words(pair[0], max_source)

    def summary(pair: Pair) -> list[str]:
        return [*_words(pair[1][0], max_summary), EOS]

    sources = _side(pairs, ("source", max_source), source, source_vocab, min_count, progress)
    return EncodedPairs(pairs, sources, _side(pairs, ("summary", max_summary), summary, vocab, min_count, progress))


def _words(text: str, most: int) -> list[str]:
    """The first words; an <eos> in the text is none of ours."""
    return [UNK if word == EOS else word for word in text.split()[:most]]


def _side(
    pairs: Pairs,
    what: tuple[str, int],
    words_of: Callable[[Pair], list[str]],
    vocab: int | None,
    min_count: int,
    progress: Progress,
) -> Side:
    rule = [_FORMAT, pairs.sha256, *what, vocab or f"min_count {min_count}"]
    key = hashlib.sha256(json.dumps(rule).encode()).hexdigest()[:24]

    def fill(folder: Path) -> None:
        lengths: dict[str, list[int]] = {split: [] for split in pairs.splits}

        def texts(split: str, found: Sequence[Pair]) -> Iterator[list[str]]:
            for number in range(len(found)):
                words = words_of(found[number])
                lengths[split].append(len(words))
                yield words

        splits = {split: texts(split, found) for split, found in pairs.splits.items()}
        encode.encode(f"{pairs.name}, {what[0]}", splits, vocab, min_count, folder, progress)
        for split, each in lengths.items():
            np.save(folder / f"{split}.npy", np.cumsum([0, *each]))

    folder = cache_folder.filled(cache_folder.path() / "encoded" / key, fill)
    splits = {
        split: Ragged(encode.read_ids(folder, split), np.load(folder / f"{split}.npy", allow_pickle=False))
        for split in pairs.splits
    }
    return Side(encode.read_words(folder), encode.read_counts(folder), splits)
