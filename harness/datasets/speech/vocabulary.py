"""Vocabularies of speech: the characters or phones of transcripts as ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.speech.recordings import Utterance
from vocabench.harness.datasets.text.tokenization import EOS, UNK
from vocabench.harness.speech.phones import PhoneRule
from vocabench.harness.speech.text import UNKNOWN, TextRule

UNITS = ("characters", "phones")
COUNTS = ("pooled", "per_language")

_SCALE = 2**31  # of counts that are made of shares

_TEXT, _PHONES = TextRule(), PhoneRule()


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Output units of a speech model.

    Attributes:
        kind: One of `UNITS`.
        units: Units in order of their ids, by decreasing count, ties in alphabetical order. <unk> and <eos> are among
            them, and the languages, as "<ba>", if sequences start with their language.
        counts_V: (V,) int64, occurrences in the training split; <eos> counts once for each utterance.
        with_language: Whether each sequence starts with its language.
    """

    kind: str
    units: tuple[str, ...]
    counts_V: NDArray[np.int64]
    with_language: bool

    @property
    def end(self) -> int:
        """Id of <eos>."""
        return self._ids[EOS]

    @property
    def separator(self) -> str:
        """Text between two units of a transcript."""
        return "" if self.kind == "characters" else " "

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {unit: number for number, unit in enumerate(self.units)}

    def split(self, utterance: Utterance) -> list[str]:
        """Return the units of an utterance, without language and <eos>; none if it has no such transcript."""
        return split(self.kind, utterance)

    def encode(self, utterance: Utterance) -> NDArray[np.int32]:
        """Return ids, (L,): the language if sequences start with it, the units, <eos>; unknown units become <unk>."""
        first = [_language(utterance)] if self.with_language else []
        return np.array(
            [self._ids.get(unit, self._ids[UNK]) for unit in (*first, *self.split(utterance), EOS)], np.int32
        )

    def decode(self, ids_L: Sequence[int] | NDArray[np.int32]) -> str:
        """Return the transcript that ids spell up to the first <eos>, without languages, with <unk> as `UNKNOWN`."""
        units = [self.units[unit_id] for unit_id in ids_L]
        units = units[: units.index(EOS)] if EOS in units else units
        spoken = [UNKNOWN if unit == UNK else unit for unit in units if unit == UNK or not _is_special(unit)]
        return self.separator.join(spoken)


def split(kind: str, utterance: Utterance) -> list[str]:
    """Return the units of an utterance; none if it has no such transcript."""
    if kind == "characters":
        return list(_TEXT(utterance.text, utterance.language))
    return _PHONES(utterance.phones or "")


def build(kind: str, train: Sequence[Utterance], with_language: bool, min_count: int) -> Vocabulary:
    """Return the vocabulary of training utterances; units that occur less than `min_count` times become <unk>."""
    all_counts = Counter(unit for utterance in train for unit in split(kind, utterance))
    counts = {unit: count for unit, count in all_counts.items() if count >= min_count}
    counts |= {UNK: all_counts.total() - sum(counts.values()), EOS: len(train)}
    if with_language:
        counts |= Counter(map(_language, train))
    ranked = sorted(counts, key=lambda unit: (-counts[unit], unit))
    return Vocabulary(kind, tuple(ranked), np.array([counts[unit] for unit in ranked], np.int64), with_language)


def per_language(texts: Sequence[NDArray[np.int32]], languages: Sequence[str], vocab: int) -> NDArray[np.int64]:
    """Return counts (V,) in which every language has the same weight, for Huffman's tree.

    As in appendix A of Liu et al. 2022, the counts of a language are divided by their sum, and these term frequencies
    are added up over the languages. The result is a multiple of that, in whole numbers; a unit that occurs has at
    least 1.

    Args:
        texts: Ids of the training texts.
        languages: Language of each text.
        vocab: Number of units V.
    """
    counts: dict[str, NDArray[np.int64]] = {}
    for ids_L, language in zip(texts, languages, strict=True):
        np.add.at(counts.setdefault(language, np.zeros(vocab, np.int64)), ids_L, 1)
    frequency_V = sum(counts_V / counts_V.sum() for counts_V in counts.values()) / len(counts)
    return np.ceil(frequency_V * _SCALE).astype(np.int64)


def _language(utterance: Utterance) -> str:
    return f"<{utterance.language}>"


def _is_special(unit: str) -> bool:
    """Return whether a unit is <eos>, <unk> or a language: no character or phone is written with angle brackets."""
    return len(unit) > 1 and unit.startswith("<") and unit.endswith(">")
