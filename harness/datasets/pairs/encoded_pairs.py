"""Pairs as word ids: both vocabularies counted and both sides encoded once, then memory-mapped."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.pairs import summary_pairs
from vocabench.harness.datasets.pairs.summary_pairs import Pair, Pairs
from vocabench.harness.datasets.shared.dataset import Progress, no_progress
from vocabench.harness.datasets.text import word_ids
from vocabench.harness.datasets.text.tokenization import EOS, UNK
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput, unknown

VOCABULARIES = ("separate", "summaries")

_VERSION = 2  # of the cache; to be raised when the same pairs would be encoded differently


@dataclass(frozen=True)
class Ragged:
    """The texts of a split as ids; those of text p are `ids_T[starts_P[p] : starts_P[p + 1]]`.

    Attributes:
        ids_T: (tokens,) int32, memory-mapped where the vocabulary is the texts' own.
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
        """Return the chosen texts, concatenated to (tokens,)."""
        if len(chosen_P) == len(self):
            return self.ids_T
        return np.concatenate([self.ids_T[self.starts_P[p] : self.starts_P[p + 1]] for p in chosen_P])

    def padded(self, chosen_B: NDArray[np.int64], width: int, padding: int) -> NDArray[np.int32]:
        """Return the chosen texts as (B, width), with `padding` after the last word of each."""
        ids_BT = np.full((len(chosen_B), width), padding, dtype=np.int32)
        for row, number in enumerate(chosen_B):
            ids_T = self.ids_T[self.starts_P[number] : self.starts_P[number + 1]]
            ids_BT[row, : len(ids_T)] = ids_T
        return ids_BT


@dataclass(frozen=True)
class Side:
    """The sources or the summaries of all pairs.

    Attributes:
        words: Words in order of their ids, by decreasing count, ties in alphabetical order.
        counts_V: (V,) int64, occurrences in the training split.
        splits: Texts by split.
    """

    words: list[str]
    counts_V: NDArray[np.int64]
    splits: Mapping[str, Ragged]


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs with their ids.

    Attributes:
        pairs: Whole texts, with all their references.
        sources: First words of each source, which the encoder reads.
        summaries: First words of the first reference, followed by <eos>, which the decoder learns.
    """

    pairs: Pairs
    sources: Side
    summaries: Side

    @property
    def name(self) -> str:
        return self.pairs.name

    @property
    def sha256(self) -> str:
        """Checksum of the pairs."""
        return self.pairs.sha256

    @property
    def licence(self) -> str:
        return self.pairs.licence

    @property
    def versions(self) -> Mapping[str, str]:
        return self.pairs.versions

    @property
    def counts_V(self) -> NDArray[np.int64]:
        """Counts of the summaries' words, (V,), which the output layer predicts."""
        return self.summaries.counts_V

    @property
    def end(self) -> int:
        """Id of <eos> among the summaries' words."""
        return self.summaries.words.index(EOS)


def load(
    name: str,
    *,
    vocab: int | None = None,
    source_vocab: int | None = None,
    min_count: int = 2,
    max_source: int = 100,
    max_summary: int = 50,
    digits: bool = False,
    vocabulary: str = "separate",
    progress: Progress = no_progress,
) -> EncodedPairs:
    """Count, encode and map pairs; the encoded pairs are cached.

    Words are separated by white space, as in tokenized text, and counted in the training split after truncation.

    Args:
        name: Name of a dataset, or a path; see `layouts.at_path`.
        vocab: Size of the vocabulary of summaries, <unk> and <eos> included; None keeps words that occur at least
            `min_count` times.
        source_vocab: Size of the vocabulary of sources, <unk> included; None as above.
        min_count: See `vocab`.
        max_source: Most words of a source; further words are dropped.
        max_summary: Most words of a summary, without <eos>. References for scoring are not truncated.
        digits: See `summary_pairs.load`.
        vocabulary: "separate" for sources and summaries that each have the words they hold; "summaries" for sources
            with the words of the summaries, where all others become <unk>, as in section 5.2 of the SOHSM paper.
        progress: Called with a line of text now and then.

    Raises:
        BadInput: See `summary_pairs.load`; there is no training split; a vocabulary is below 2 or above the number of
            distinct words; `source_vocab` is given with the words of the summaries.
    """
    if vocabulary not in VOCABULARIES:
        raise unknown("vocabulary", vocabulary, VOCABULARIES)
    if vocabulary == "summaries" and source_vocab is not None:
        raise BadInput(f"source_vocab={source_vocab} with vocabulary='summaries': allowed: 0, the summaries' words")
    pairs = summary_pairs.load(name, digits=digits, progress=progress)
    if "train" not in pairs.splits:
        raise BadInput(f"pairs {name}: no training split: allowed: a folder or a dataset with one")

    source, summary = partial(_source, most=max_source), partial(_summary, most=max_summary)
    summaries = _side(pairs, ("summary", max_summary), summary, vocab, min_count, progress)
    if vocabulary == "separate":
        sources = _side(pairs, ("source", max_source), source, source_vocab, min_count, progress)
    else:
        every = _side(pairs, ("source", max_source), source, None, 1, progress)
        sources = _in_words_of(summaries, every)
    return EncodedPairs(pairs, sources, summaries)


def load_in_words(
    name: str,
    split: str,
    sources: Sequence[str],
    summaries: Sequence[str],
    *,
    max_source: int,
    max_summary: int,
    digits: bool,
    progress: Progress = no_progress,
) -> EncodedPairs:
    """Encode a split of pairs in given words, for a model that knows these. The ids are in memory.

    Args:
        name: Name of a dataset, or a path; see `layouts.at_path`.
        split: The split. If there is none, the result has the pairs of the others and no ids.
        sources, summaries: Words in order of their ids; all others become <unk>.
        max_source, max_summary, digits, progress: As for `load`.

    Raises:
        BadInput: See `summary_pairs.load`; or the words lack <unk>.
    """
    pairs = summary_pairs.load(name, digits=digits, progress=progress)
    split_pairs = pairs.splits.get(split, [])[:]
    return EncodedPairs(
        pairs,
        _side_in_words(sources, split, [_source(pair, max_source) for pair in split_pairs]),
        _side_in_words(summaries, split, [_summary(pair, max_summary) for pair in split_pairs]),
    )


def _side_in_words(words: Sequence[str], split: str, texts: Sequence[Sequence[str]]) -> Side:
    ids = {word: number for number, word in enumerate(words)}
    if UNK not in ids:
        raise BadInput(f"a vocabulary without {UNK} for other pairs: allowed: one that has it")
    ids_T = np.array([ids.get(word, ids[UNK]) for text in texts for word in text], np.int32)
    starts_P = np.cumsum([0, *map(len, texts)])
    return Side(list(words), np.bincount(ids_T, minlength=len(words)), {split: Ragged(ids_T, starts_P)})


def _in_words_of(other: Side, side: Side) -> Side:
    """Return the texts of a side in the words of another one; words that it lacks become <unk>.

    The ids are in memory, at four bytes for each word of the texts.
    """
    id_of = {word: number for number, word in enumerate(other.words)}
    new_V = np.array([id_of.get(word, id_of[UNK]) for word in side.words], np.int32)
    splits = {split: Ragged(new_V[ragged.ids_T], ragged.starts_P) for split, ragged in side.splits.items()}
    counts_V = np.bincount(new_V, weights=side.counts_V, minlength=len(other.words)).astype(np.int64)
    return Side(other.words, counts_V, splits)


def _source(pair: Pair, most: int) -> list[str]:
    return _words(pair[0], most)


def _summary(pair: Pair, most: int) -> list[str]:
    return [*_words(pair[1][0], most), EOS]


def _words(text: str, most: int) -> list[str]:
    """Return the first words in Unicode NFC; an <eos> in the text itself becomes <unk>."""
    words = unicodedata.normalize("NFC", text).split()
    return [UNK if word == EOS else word for word in words[:most]]


def _side(
    pairs: Pairs,
    cut: tuple[str, int],
    words_of: Callable[[Pair], list[str]],
    vocab: int | None,
    min_count: int,
    progress: Progress,
) -> Side:
    """Encode one side of all pairs.

    Args:
        cut: Name of the side, and the most words of a text.
        words_of: Returns the words of a pair on this side.
    """
    rule = [_VERSION, pairs.sha256, *cut, vocab or f"min_count {min_count}"]
    key = hashlib.sha256(json.dumps(rule).encode()).hexdigest()[:24]

    def fill(folder: Path) -> None:
        lengths: dict[str, list[int]] = {split: [] for split in pairs.splits}

        def texts(split: str, split_pairs: Sequence[Pair]) -> Iterator[list[str]]:
            for number in range(len(split_pairs)):
                words = words_of(split_pairs[number])
                lengths[split].append(len(words))
                yield words

        splits = {split: texts(split, split_pairs) for split, split_pairs in pairs.splits.items()}
        word_ids.encode(f"{pairs.name}, {cut[0]}", splits, vocab, min_count, folder, progress)
        for split, lengths_of_split in lengths.items():
            np.save(folder / f"{split}.npy", np.cumsum([0, *lengths_of_split]))

    folder = cache_folder.filled(cache_folder.path() / "encoded" / key, fill)
    splits = {
        split: Ragged(word_ids.read_ids(folder, split), np.load(folder / f"{split}.npy", allow_pickle=False))
        for split in pairs.splits
    }
    return Side(word_ids.read_words(folder), word_ids.read_counts(folder), splits)
