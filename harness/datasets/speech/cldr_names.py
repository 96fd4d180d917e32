"""Names in the languages of the paper: CLDR's territories, languages, scripts, currencies, months and days."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from vocabench.harness.speech.text import TextRule

_KINDS = ("territories", "languages", "scripts", "currency_names")
_CALENDAR = ("months", "days")
_CYRILLIC = {"be", "ru", "uk", "ba", "ky", "tt"}
_LENGTHS = (3, 30)  # characters; shorter ones are codes
_NAME = re.compile(r"[^\W\d_]+(?:[ '\u2019\u02bc\u2010\u2011\u00b7-]+[^\W\d_]+)*")
_RULE = TextRule()

# The only name in Bashkir in CLDR is that of the language itself. Numbers are composed from these words.
_BASHKIR_ONES = ("", "бер", "ике", "өс", "дүрт", "биш", "алты", "ете", "һигеҙ", "туғыҙ")
_BASHKIR_TENS = ("", "ун", "егерме", "утыҙ", "ҡырҡ", "илле", "алтмыш", "етмеш", "һикһән", "туҡһан")
_BASHKIR_HUNDRED = "йөҙ"
_BASHKIR_NUMBERS = 299


def names(language: str) -> list[str]:
    """Return the names in a language, normalized by `TextRule`, without repetition, in a fixed shuffled order."""
    normalized = {_RULE(name, language) for name in _all_texts(language) if _is_name(name)}
    script = "CYRILLIC" if language in _CYRILLIC else "LATIN"
    kept = [name for name in normalized if _LENGTHS[0] <= len(name) <= _LENGTHS[1] and _is_in(script, name)]
    return sorted(kept, key=lambda name: hashlib.sha256(f"{language}:{name}".encode()).digest())


def bashkir_number(number: int) -> str:
    """Return a number from 1 to 999 in Bashkir words."""
    hundreds, tens, ones = number // 100, number // 10 % 10, number % 10
    words = (
        _BASHKIR_ONES[hundreds] if hundreds > 1 else "",
        _BASHKIR_HUNDRED if hundreds else "",
        _BASHKIR_TENS[tens],
        _BASHKIR_ONES[ones],
    )
    return " ".join(filter(None, words))


def _all_texts(language: str) -> Iterator[str]:
    from babel import localedata

    data = localedata.load(language, merge_inherited=False)
    for kind in _KINDS:
        yield from _texts(data.get(kind, {}))
    for kind in _CALENDAR:
        yield from _texts(data.get(kind, {}).get("format", {}).get("wide", {}))
    if language == "ba":
        yield from map(bashkir_number, range(1, _BASHKIR_NUMBERS + 1))


def _is_name(text: str) -> bool:
    """Return whether a text consists of words only: no code, brackets or numbers."""
    return bool(_NAME.fullmatch(text)) and not text.isupper()


def _texts(values: Mapping[Any, Any]) -> Iterator[str]:
    """Return the values that are texts and not references to other parts of the data."""
    return (value for value in values.values() if isinstance(value, str))


def _is_in(script: str, name: str) -> bool:
    """Return whether all letters of a name belong to a script; modifier letters belong to any."""
    return all(
        unicodedata.name(sign, "").startswith(script)
        for sign in name
        if unicodedata.category(sign).startswith("L") and unicodedata.category(sign) != "Lm"
    )
