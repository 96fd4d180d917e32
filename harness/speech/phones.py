"""Phones: splitting phonetic transcripts into tokens, for the vocabulary and for the phone error rate.

A token is a base letter with everything that belongs to it. The rules in their order:

- A tie bar joins the letters on its two sides: t and \u0283 under one are one token. It is not written in the token, so
  that a corpus with tied affricates and a corpus that spells them as two letters agree.
- Stress marks precede a phone. They are dropped, or kept at the front of its token.
- Length marks follow a phone. They are kept at the end of its token, or dropped.
- Diacritics (combining marks) and modifier letters (such as aspiration, palatalization and tone letters) stay with the
  letter before them, or are dropped. The cedilla of the palatal fricative is part of a letter and stays.
- Syllable dots, bars, linking marks and white space are not phones.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from vocabench.impls.errors import unknown

SPLITS = ("spaces", "letters")
MARKS = ("keep", "drop")

_TIES = "\u0361\u035c"
_STRESS = "\u02c8\u02cc"
_LENGTH = "\u02d0\u02d1"
_BOUNDARIES = ".|\u2016\u203f_"
_CEDILLA = "\u0327"


@dataclass(frozen=True)
class PhoneRule:
    """The rule that splits a phonetic transcript into tokens.

    Attributes:
        split: "spaces" if the transcript has spaces between phones, so that a phone of several letters is one token, or
            "letters" if each base letter starts a token.
        stress: "keep" or "drop" for stress marks.
        length: "keep" or "drop" for length marks.
        diacritics: "keep" or "drop" for diacritics and modifier letters.
    """

    split: str = "spaces"
    stress: str = "drop"
    length: str = "keep"
    diacritics: str = "keep"

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise unknown("rule for split", self.split, SPLITS)
        for name in ("stress", "length", "diacritics"):
            if getattr(self, name) not in MARKS:
                raise unknown(f"rule for {name}", getattr(self, name), MARKS)

    @property
    def signature(self) -> str:
        return (
            f"unicode:NFC|split:{self.split}|ties:join|stress:{self.stress}|length:{self.length}"
            f"|diacritics:{self.diacritics}"
        )

    def __call__(self, transcript: str) -> list[str]:
        """Return the tokens of a transcript in the International Phonetic Alphabet, or in any alphabet with
        "spaces"."""
        pieces = unicodedata.normalize("NFD", transcript).split()
        if self.split == "letters":
            pieces = [phone for piece in pieces for phone in _letters(piece)]
        tokens = ("".join(sign for sign in piece if self._stays(sign)) for piece in pieces)
        return [unicodedata.normalize("NFC", token) for token in tokens if token]

    def _stays(self, sign: str) -> bool:
        if sign in _TIES or sign in _BOUNDARIES:
            return False
        if sign in _STRESS:
            return self.stress == "keep"
        if sign in _LENGTH:
            return self.length == "keep"
        return self.diacritics == "keep" or not _follows(sign)


def _follows(sign: str) -> bool:
    """Return whether a character belongs to the letter before it: a combining mark, modifier letter or tone letter."""
    return unicodedata.category(sign) in ("Mn", "Lm", "Sk") and sign not in _STRESS + _CEDILLA


def _letters(piece: str) -> list[str]:
    """Split a piece of a transcript before each base letter, or before the stress mark in front of it."""
    phones: list[str] = []
    ahead = ""  # stress marks before the next letter
    is_tied = False
    for sign in piece:
        if sign in _STRESS:
            ahead += sign
        elif phones and (_follows(sign) or sign == _CEDILLA or is_tied):
            phones[-1] += sign
            is_tied = sign in _TIES
        elif sign not in _BOUNDARIES:
            phones.append(ahead + sign)
            ahead = ""
    return phones
