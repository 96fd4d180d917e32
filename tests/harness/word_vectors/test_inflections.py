"""Analogy questions about the endings of a text's own words."""

import numpy as np

from vocabench.harness.word_vectors import inflections


def test_pairs_of_frequent_words_with_an_ending_are_asked():
    words = [
        "value",
        "values",
        "return",
        "returns",
        "rare",
        "rares",
        "use",
        "uses",
        "parse",
        "parsed",
        "create",
        "created",
    ]
    counts_V = np.array([900, 500, 300, 200, 900, 49, 900, 900, 80, 70, 60, 50])
    sections = {section.name: section.questions for section in inflections.questions(words, counts_V)}
    assert sections["ending-s"] == (("return", "returns", "value", "values"), ("value", "values", "return", "returns"))
    assert set(sections["ending-ed"]) == {
        ("parse", "parsed", "create", "created"),
        ("create", "created", "parse", "parsed"),
    }
    assert sections["ending-ing"] == ()


def test_only_the_most_frequent_pairs_are_asked():
    names = [f"{a}{b}word" for a in "abcdefghij" for b in "abcdefghij"]
    words = [word for name in names for word in (name, f"{name}s")]
    counts_V = np.repeat(np.arange(60, 60 + len(names)), 2)
    (first, *_) = inflections.questions(words, counts_V)
    asked = {word for question in first.questions for word in question}
    assert asked <= {word for name in names[-inflections.MOST_PAIRS :] for word in (name, f"{name}s")}
    assert len(asked) > inflections.MOST_PAIRS
    assert inflections.questions(words, counts_V)[0] == first
