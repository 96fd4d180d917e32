"""One written form for what is said: the rule that transcripts are read by and characters are scored by."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from vocabench.impls.errors import unknown

CASES = ("lower", "keep")
PUNCTUATION = ("drop", "keep")
SPACES = ("keep", "drop")

UNKNOWN = "\ufffd"  # stands for a character that a model cannot name: an error, and no punctuation

_APOSTROPHES = str.maketrans({"\u2019": "'", "\u02bc": "'"})
_DOTTED = str.maketrans({"I": "\u0131", "\u0130": "i"})
_DOTTED_LANGUAGES = ("az", "tr")  # i and dotless i are two letters there
_DASH = re.compile(r"[\u2010-\u2015/-]")


@dataclass(frozen=True)
class TextRule:
    """How text becomes characters: in Unicode's normal form C, a space for each run of white space, none at the ends.

    Attributes:
        case: "lower", by the rules of the language, or "keep".
        punctuation: "drop" takes out punctuation and symbols; dashes and slashes become spaces. Apostrophes between
            letters stay, in one spelling, and so does `UNKNOWN`. Or "keep".
        spaces: "keep", as a character like others, or "drop".
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
        """The text in its one form; `language` is a code such as "tr", which matters for case alone."""
        text = unicodedata.normalize("NFC", text)
        if self.case == "lower":
            text = text.translate(_DOTTED) if language in _DOTTED_LANGUAGES else text
            # Lower case may come apart into letters and marks.
            text = unicodedata.normalize("NFC", text.lower())
        if self.punctuation == "drop":
            text = _DASH.sub(" ", text.translate(_APOSTROPHES))
            text = "".join(sign for place, sign in enumerate(text) if _stays(text, place))
        return ("" if self.spaces == "drop" else " ").join(text.split())


def _stays(text: str, place: int) -> bool:
    sign = text[place]
    if sign == "'":
        return text[place - 1 : place].isalpha() and text[place + 1 : place + 2].isalpha()
    return unicodedata.category(sign)[0] not in "PSC" or sign == UNKNOWN or sign.isspace()
