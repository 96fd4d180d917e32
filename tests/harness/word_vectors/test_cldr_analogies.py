"""Analogy questions from CLDR: what they ask, that they can be answered, and that they are always the same."""

import datetime
import importlib.util

import numpy as np
import pytest

from vocabench.harness.metrics import word_vectors as metrics
from vocabench.harness.word_vectors import cldr_analogies
from vocabench.impls.errors import BadInput

FIND_SPEC = importlib.util.find_spec


@pytest.fixture(scope="module")
def sections():
    pytest.importorskip("babel")
    return {section.name: section for section in cldr_analogies.questions()}


def pairs(section):
    return {question[:2] for question in section.questions} | {question[2:] for question in section.questions}


def test_there_are_questions_about_currencies_and_languages(sections):
    assert list(sections) == ["country-currency", "country-language"]
    currencies, languages = map(pairs, sections.values())
    assert {("poland", "zloty"), ("denmark", "krone"), ("japan", "yen"), ("thailand", "baht")} <= currencies
    assert {("poland", "polish"), ("denmark", "danish"), ("japan", "japanese"), ("brazil", "portuguese")} <= languages
    # Several currencies are tender in Panama, and several languages are official in Belgium and Switzerland.
    assert not {"panama"} & {country for country, _ in currencies}
    assert not {"belgium", "switzerland"} & {country for country, _ in languages}


def test_questions_are_of_single_words_with_one_answer(sections):
    for section in sections.values():
        assert 1000 < len(section.questions) <= cldr_analogies.MOST_QUESTIONS
        assert len(set(section.questions)) == len(section.questions)
        assert len(dict(pairs(section))) == len(pairs(section)), "a country has one value"
        for question in section.questions:
            assert len(set(question)) == 4
            assert all(word.isalpha() and word == word.lower() for word in question)


def test_questions_are_always_the_same(sections):
    assert cldr_analogies.questions() == list(sections.values())


def test_questions_are_chosen_among_the_words_of_a_vocabulary():
    pytest.importorskip("babel")
    words = {"poland", "zloty", "polish", "denmark", "krone", "danish", "japan", "yen", "egypt"}
    currencies, languages = cldr_analogies.questions(words)
    assert pairs(currencies) == {("poland", "zloty"), ("denmark", "krone"), ("japan", "yen")}
    assert len(currencies.questions) == 6
    assert languages.questions == (("denmark", "danish", "poland", "polish"), ("poland", "polish", "denmark", "danish"))
    assert [section.questions for section in cldr_analogies.questions({"poland"})] == [(), ()]


def test_currencies_are_those_of_a_day(sections):
    before, _ = cldr_analogies.questions(day=datetime.date(1998, 6, 1))
    assert {("germany", "mark"), ("italy", "lira"), ("greece", "drachma")} <= pairs(before)
    assert {("germany", "euro"), ("italy", "euro"), ("greece", "euro")} <= pairs(sections["country-currency"])


def test_vectors_that_are_country_plus_kind_answer_every_question(sections):
    section = sections["country-currency"]
    words = sorted({word for question in section.questions for word in question})
    word_ids = {word: row for row, word in enumerate(words)}
    values = sorted({value for _, value in pairs(section)})
    vectors_VE = np.zeros((len(words), len(values) + 1))
    for country, value in pairs(section):
        vectors_VE[[word_ids[country], word_ids[value]], values.index(value)] = 1.0
        vectors_VE[word_ids[country], -1] = 1.0
    score = metrics.analogies([section], vectors_VE, word_ids)
    assert score.value == 1.0
    assert score.detail == {section.name: (len(section.questions), len(section.questions))}
    del word_ids["poland"]
    assert metrics.analogies([section], vectors_VE, word_ids).skipped > 0


def test_without_babel_there_is_one_line_with_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "babel" else FIND_SPEC(name))
    with pytest.raises(
        BadInput, match=r"^an analogy set from CLDR needs babel, .* 'pip install .*\[speech\]\"' first$"
    ):
        cldr_analogies.questions()
