"""Character, word and phone error rates: substitutions, deletions and insertions over the length of the reference.

    rate = (sum over utterances of S_u + D_u + I_u) / (sum over utterances of N_u)

Errors are pooled over utterances, so a long utterance counts more than a short one. A rate can exceed 1. The alignments
of least edit distance are those of the jiwer library. A `CharacterErrorRate`, a `WordErrorRate` or a `PhoneErrorRate`
fixes everything that must be equal before two figures can be compared, and its `signature` states it.

An empty hypothesis consists of deletions only. If a reference is empty, every symbol of the hypothesis is an insertion,
which adds to the errors but not to the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata

import jiwer
import numpy as np
from numpy.typing import NDArray

from vocabench.harness.measure.stats import Interval
from vocabench.harness.metrics import bootstrap
from vocabench.harness.metrics.bootstrap import RESAMPLES, Difference
from vocabench.harness.speech.phones import PhoneRule
from vocabench.harness.speech.text import TextRule
from vocabench.impls.errors import BadInput

COUNTS = ("substitutions", "deletions", "insertions", "length")

_TOKENS = jiwer.Compose([jiwer.ReduceToListOfListOfWords(word_delimiter=" ")])


@dataclass(frozen=True)
class CharacterErrorRate:
    """
    Attributes:
        rule: The text rule for references and hypotheses, whose characters are counted.
    """

    rule: TextRule = field(default_factory=TextRule)

    @property
    def signature(self) -> str:
        """Everything that a score depends on, in one line."""
        return f"cer|jiwer:{metadata.version('jiwer')}|{self.rule.signature}|rate:pooled"

    def per_utterance(
        self, references: Sequence[str], hypotheses: Sequence[str], languages: Sequence[str] | None = None
    ) -> NDArray[np.int64]:
        """Count the errors of each utterance, for rates, intervals and tests.

        Args:
            references, hypotheses: U texts each.
            languages: Language of each utterance, for lower-casing.

        Returns:
            (U, 4): `COUNTS` for each utterance.

        Raises:
            BadInput: There are no utterances, or the numbers of texts differ.
        """
        _check(references, hypotheses)
        languages = [""] * len(references) if languages is None else languages
        _check(references, languages)
        return _counts(self._tokens(references, languages), self._tokens(hypotheses, languages))

    def _tokens(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[str]]:
        # As numbers, so that a space is an ordinary token.
        return [
            [str(ord(sign)) for sign in self.rule(text, language)]
            for text, language in zip(texts, languages, strict=True)
        ]


@dataclass(frozen=True)
class WordErrorRate:
    """
    Attributes:
        rule: The text rule for references and hypotheses, whose words are counted.
    """

    rule: TextRule = field(default_factory=TextRule)

    @property
    def signature(self) -> str:
        """Everything that a score depends on, in one line."""
        return f"wer|jiwer:{metadata.version('jiwer')}|{self.rule.signature}|rate:pooled"

    def per_utterance(self, references: Sequence[str], hypotheses: Sequence[str]) -> NDArray[np.int64]:
        """Count the errors of each utterance; see `CharacterErrorRate.per_utterance`."""
        _check(references, hypotheses)
        return _counts(
            [self.rule(each).split() for each in references], [self.rule(each).split() for each in hypotheses]
        )


@dataclass(frozen=True)
class PhoneErrorRate:
    """
    Attributes:
        rule: The rule that splits transcripts into tokens.
    """

    rule: PhoneRule = field(default_factory=PhoneRule)

    @property
    def signature(self) -> str:
        """Everything that a score depends on, in one line."""
        return f"per|jiwer:{metadata.version('jiwer')}|{self.rule.signature}|rate:pooled"

    def per_utterance(self, references: Sequence[str], hypotheses: Sequence[str]) -> NDArray[np.int64]:
        """Count the errors of each phonetic transcript; see `CharacterErrorRate.per_utterance`."""
        _check(references, hypotheses)
        return _counts([self.rule(each) for each in references], [self.rule(each) for each in hypotheses])


def rate(counts_U4: NDArray[np.int64]) -> float:
    """Return the pooled error rate of all utterances.

    Raises:
        BadInput: All references are empty.
    """
    errors_U, length_U = _pooled(counts_U4)
    return float(errors_U.sum() / length_U.sum())


def aggregate(counts_U4: NDArray[np.int64], resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Return the pooled error rate with its 95 % interval over resamples of the utterances (Bisani and Ney 2004).

    Raises:
        BadInput: All references are empty.
    """
    errors_U, length_U = _pooled(counts_U4)
    return bootstrap.intervals(errors_U[:, None], resamples, seed, sizes_S=length_U)[0]


def compare(
    first_U4: NDArray[np.int64],
    second_U4: NDArray[np.int64],
    resamples: int = RESAMPLES,
    seed: int = 0,
    *,
    lengths_may_differ: bool = False,
) -> Difference:
    """Return the difference between the rates of two systems on the same utterances (Bisani and Ney 2004).

    Args:
        first_U4, second_U4: Counts of the two systems.
        resamples: Number of resamples.
        seed: Seed of the resamples.
        lengths_may_differ: Whether a reference may have another length for each system, because it has alternatives.

    Raises:
        BadInput: The references differ, or all of them are empty.
    """
    same = len(first_U4) == len(second_U4) and (lengths_may_differ or (first_U4[:, 3] == second_U4[:, 3]).all())
    if not same:
        sizes = [f"{len(each_U4):,} utterances of {each_U4[:, 3].sum():,} symbols" for each_U4 in (first_U4, second_U4)]
        raise BadInput(f"systems with {' and '.join(sizes)}: allowed: the same references")
    first_U, length_U = _pooled(first_U4)
    second_U, other_U = _pooled(second_U4)
    return bootstrap.rate_difference((first_U, length_U), (second_U, other_U), resamples, seed)


def _pooled(counts_U4: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the errors and the length of each utterance."""
    errors_U, length_U = counts_U4[:, :3].sum(axis=1), counts_U4[:, 3]
    if not length_U.sum():
        raise BadInput(f"{len(counts_U4):,} references without a symbol: allowed: one symbol or more among them")
    return errors_U.astype(np.float64), length_U.astype(np.float64)


def _check(first: Sequence[str], second: Sequence[str]) -> None:
    if not len(first) or len(first) != len(second):
        raise BadInput(f"{len(first):,} references, {len(second):,} hypotheses: allowed: as many of both, from 1")


def _counts(references: list[list[str]], hypotheses: list[list[str]]) -> NDArray[np.int64]:
    """Return (U, 4) counts of tokens without spaces."""
    return np.array([_of_one(*each) for each in zip(references, hypotheses, strict=True)], np.int64)


def _of_one(reference: list[str], hypothesis: list[str]) -> tuple[int, int, int, int]:
    found = jiwer.process_words(
        " ".join(reference), " ".join(hypothesis), reference_transform=_TOKENS, hypothesis_transform=_TOKENS
    )
    return found.substitutions, found.deletions, found.insertions, len(reference)
