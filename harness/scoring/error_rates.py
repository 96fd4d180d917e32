"""Word, character and phone error rates of transcripts in files, with or without alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.metrics.error_rate import CharacterErrorRate, PhoneErrorRate, WordErrorRate
from vocabench.harness.scoring import alignment, word_networks
from vocabench.harness.speech.phones import PhoneRule
from vocabench.harness.speech.text import TextRule
from vocabench.impls.errors import BadInput, unknown

LEVENSHTEIN, SCLITE = "levenshtein", "sclite"
ALIGNMENTS = (LEVENSHTEIN, SCLITE)
WORDS, CHARACTERS, PHONES = "wer", "cer", "per"


@contextmanager
def _located(place: str) -> Iterator[None]:
    """Add the place to the message of an error."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from None


@dataclass(frozen=True)
class Transcript:
    """
    Attributes:
        place: Its file and line, for messages.
        text: Its text.
        has_notation: Whether braces, slashes and @ are SCTK's notation of alternatives.
    """

    place: str
    text: str
    has_notation: bool

    def parsed(self) -> word_networks.Sequence_:
        if not self.has_notation:
            return tuple(self.text.split())
        with _located(self.place):
            return word_networks.parse(self.text)


@dataclass(frozen=True)
class ErrorRate:
    """
    Attributes:
        metric: "wer", "cer" or "per".
        alignment: "levenshtein", the least edit distance, or "sclite", whose costs are those of that program. Only
            the latter takes alternatives; it does not count the spaces between words as characters.
        text_rule: The rule for words and characters.
        phone_rule: The rule for phones.
        dropped_words: Words that are left out of both sides before any rule, in any case unless the rule keeps it.
    """

    metric: str
    alignment: str = LEVENSHTEIN
    text_rule: TextRule = field(default_factory=TextRule)
    phone_rule: PhoneRule = field(default_factory=PhoneRule)
    dropped_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.alignment not in ALIGNMENTS:
            raise unknown("alignment", self.alignment, ALIGNMENTS)
        if self.metric == CHARACTERS and self.alignment == SCLITE and self.text_rule.spaces == "keep":
            raise BadInput("spaces=keep with the alignment of sclite: allowed: drop, as it aligns the letters of words")

    @property
    def signature(self) -> str:
        """Everything that a score depends on, in one line."""
        rule = self.phone_rule if self.metric == PHONES else self.text_rule
        costs = f"{alignment.SUBSTITUTION}-{alignment.DELETION}-{alignment.INSERTION}"
        by_sclite = f"{self.metric}|alignment:sclite|costs:{costs}|{rule.signature}|rate:pooled"
        text = by_sclite if self.alignment == SCLITE else self._rate.signature
        return f"{text}|dropped:{','.join(self.dropped_words)}" if self.dropped_words else text

    @property
    def _rate(self) -> WordErrorRate | CharacterErrorRate | PhoneErrorRate:
        if self.metric == PHONES:
            return PhoneErrorRate(self.phone_rule)
        return WordErrorRate(self.text_rule) if self.metric == WORDS else CharacterErrorRate(self.text_rule)

    def per_utterance(self, references: Sequence[Transcript], hypotheses: Sequence[Transcript]) -> NDArray[np.int64]:
        """Return (U, 4): `error_rate.COUNTS` of each utterance.

        Raises:
            BadInput: A transcript's notation is invalid, or has alternatives that the alignment does not take.
        """
        if self.alignment == LEVENSHTEIN:
            return self._rate.per_utterance(list(map(self._text, references)), list(map(self._text, hypotheses)))
        pairs = zip(map(self._network, references), map(self._network, hypotheses), strict=True)
        return np.array([_row(alignment.align(*pair)) for pair in pairs], np.int64)

    def _text(self, transcript: Transcript) -> str:
        if not (transcript.has_notation or self.dropped_words):
            return transcript.text
        with _located(transcript.place):
            words = word_networks.only_reading(transcript.parsed())
        return " ".join(word for word in words if not self._is_dropped(word))

    def _network(self, transcript: Transcript) -> word_networks.WordNetwork:
        return word_networks.network(word_networks.mapped(transcript.parsed(), self._symbols))

    def _symbols(self, word: str) -> Sequence[str]:
        """Return the words, characters or phones of a word."""
        if self._is_dropped(word):
            return ()
        if self.metric == PHONES:
            return self.phone_rule(word)
        text = self.text_rule(word)
        return text.split() if self.metric == WORDS else [sign for sign in text if not sign.isspace()]

    def _is_dropped(self, word: str) -> bool:
        if self.text_rule.case == "keep":
            return word in self.dropped_words
        return word.lower() in {each.lower() for each in self.dropped_words}


def _row(counts: alignment.Counts) -> tuple[int, int, int, int]:
    length = counts.correct + counts.substitutions + counts.deletions
    return counts.substitutions, counts.deletions, counts.insertions, length
