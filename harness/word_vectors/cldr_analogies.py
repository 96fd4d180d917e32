"""Analogy questions made from CLDR, the locale data of Unicode, as Babel contains it.

There are two sections, as in "denmark krone poland zloty" and "denmark danish poland polish":

- `country-currency`: the unit of the only currency that is tender in a country, which ends its English name.
- `country-language`: the only official language of a country, by law or in fact.

Names are English, in lower case, of a single word of letters only. A country with several currencies or languages is
left out, since its question would have several answers. Capitals are not part of CLDR.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
from collections.abc import Container, Iterator, Mapping

from vocabench.harness.datasets.shared import packages
from vocabench.harness.word_vectors.question_files import Question, Section

DAY = datetime.date(2025, 1, 1)
MOST_QUESTIONS = 2_500  # in a section

_COUNTRY_CODE = 2  # letters; codes of three digits are regions such as Europe


def questions(words: Container[str] | None = None, *, day: datetime.date = DAY) -> list[Section]:
    """Return the sections in a fixed order. They depend on the version of Babel and on the arguments only.

    Args:
        words: The words, in lower case, that a question may contain, such as those of a vocabulary; None for all. Of a
            small vocabulary, a section asks more questions if they are chosen here than if others are skipped later.
        day: Day on which the currencies are tender, such as one in the years in which a text was written.

    Raises:
        BadInput: Babel is not installed.
    """
    packages.require("an analogy set from CLDR", {"babel": "babel"})
    return [
        Section("country-currency", _asked(dict(_currencies(day)), words)),
        Section("country-language", _asked(dict(_languages()), words)),
    ]


def _currencies(day: datetime.date) -> Iterator[tuple[str, str]]:
    """Yield the countries, each with the unit of its currency."""
    from babel import Locale
    from babel.numbers import get_territory_currencies

    names = Locale("en").currencies
    for code, country in _countries():
        codes = get_territory_currencies(code, day)
        if len(codes) == 1 and codes[0] in names:
            yield country, names[codes[0]].split()[-1].lower()


def _languages() -> Iterator[tuple[str, str]]:
    """Yield the countries, each with its official language."""
    from babel import Locale
    from babel.languages import get_official_languages

    names = Locale("en").languages
    for code, country in _countries():
        codes = get_official_languages(code, de_facto=True)
        if len(codes) == 1 and codes[0] in names:
            yield country, names[codes[0]].lower()


def _countries() -> Iterator[tuple[str, str]]:
    """Yield the codes and the names of countries and dependent territories."""
    from babel import Locale

    for code, name in sorted(Locale("en").territories.items()):
        if len(code) == _COUNTRY_CODE:
            yield code, name.lower()


def _asked(values: Mapping[str, str], words: Container[str] | None) -> tuple[Question, ...]:
    """Return questions over all ordered pairs of countries, or the largest sample that a section may have.

    A question in which a word occurs twice is left out: the other three words of a question are excluded from its
    answers. The sample is drawn by a hash, so that it does not depend on the version of a random number generator.
    """
    known = {
        country: value
        for country, value in values.items()
        if all(word.isalpha() and (words is None or word in words) for word in (country, value))
    }
    asked: list[Question] = [
        (first, known[first], second, known[second])
        for first, second in itertools.permutations(sorted(known), 2)
        if len({first, known[first], second, known[second]}) == 4
    ]
    asked.sort(key=lambda question: hashlib.sha256(" ".join(question).encode()).digest())
    return tuple(sorted(asked[:MOST_QUESTIONS]))
