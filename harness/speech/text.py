"""The text rule by which transcripts are normalized for training and for character error rates."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from vocabench.impls.errors import unknown

CASES = ("lower", "keep")
PUNCTUATION = ("drop", "keep")
SPACES = ("keep", "drop")

UNKNOWN = "\ufffd"  # a character outside the vocabulary, which is an error and not punctuation

_APOSTROPHES = str.maketrans({"\u2019": "'", "\u02bc": "'"})
_DOTTED = str.maketrans({"I": "\u0131", "\u0130": "i"})
_DOTTED_LANGUAGES = ("az", "aze", "tr", "tur")  # i and dotless i are different letters
_DASH = re.compile(r"[\u2010-\u2015/-]")


@dataclass(frozen=True)
class TextRule:
    """Normalizes text to Unicode NFC, with one space for each run of white space and none at the ends.

    Attributes:
        case: "lower", by the rules of the language, or "keep".
        punctuation: "drop" removes punctuation and symbols, and replaces dashes and slashes by spaces; apostrophes
            between letters stay, in one spelling, and so does `UNKNOWN`. "keep" keeps them.
        spaces: "keep", as an ordinary character, or "drop".
    """

    case: str = "lower"
    punctuation: str = "drop"
    spaces: str = "keep"

    def __post_init__(self) -> None:
        for name, allowed in (("case", CASES), ("punctuation", PUNCTUATION), ("spaces", SPACES)):
            if getattr(self, name) not in allowed:
                raise unknown(f"rule for {name}", getattr(self, name), allowed)

    @property
    def signature(self) -> str:
        return f"unicode:NFC|case:{self.case}|punctuation:{self.punctuation}|spaces:{self.spaces}"

    def __call__(self, text: str, language: str = "") -> str:
        """Return the normalized text.

        Args:
            text: Any text.
            language: A code such as "tr", "tr-TR" or "tur", by whose rules letters are lower-cased.
        """
        text = unicodedata.normalize("NFC", text)
        if self.case == "lower":
            text = text.translate(_DOTTED) if _primary(language) in _DOTTED_LANGUAGES else text
            # Lower-casing can decompose characters into letters and marks.
            text = unicodedata.normalize("NFC", text.lower())
        if self.punctuation == "drop":
            text = _DASH.sub(" ", text.translate(_APOSTROPHES))
            text = "".join(sign for place, sign in enumerate(text) if _stays(text, place))
            # Without a joiner between them, a letter and a mark have another normal form.
            text = unicodedata.normalize("NFC", text)
        return ("" if self.spaces == "drop" else " ").join(text.split())


def _primary(language: str) -> str:
    """Return the code without region or script."""
    return re.split("[-_]", language, maxsplit=1)[0].lower()


def _stays(text: str, place: int) -> bool:
    sign = text[place]
    if sign == "'":
        return text[place - 1 : place].isalpha() and text[place + 1 : place + 2].isalpha()
    return unicodedata.category(sign)[0] not in "PSC" or sign == UNKNOWN or sign.isspace()
