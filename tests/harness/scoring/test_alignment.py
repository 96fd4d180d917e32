"""Word errors of transcripts with alternatives."""

import itertools
import random

import pytest

from vocabench.harness.scoring import alignment, word_networks
from vocabench.impls.errors import BadInput

# Utterances of the test data of NIST's Scoring Toolkit (tests.ref, tests.hyp), by speaker, with the counts that sclite
# publishes for them: words, correct, substitutions, deletions, insertions. Of speaker i, the utterance that is scored
# by a rule for fragments of words is left out.
PUBLISHED = {
    "f": (
        (48, 48, 0, 0, 1),
        [
            ("a b { c d / c / e } e f g", "a b c d e f g"),
            ("a b { c / c d / e } e f g", "a b c d e f g"),
            ("a b { c / e / c d } e f g", "a b c d e f g"),
            ("a b { c / e / c d } f g", "a b c d e f g"),
            ("a b c d { e / c / @ } f g", "a b c d e f g"),
            ("a b c d e { e / c / @ } f g", "a b c d e f g"),
            ("a b c d { e / c / @ } e f g", "a b c d e f g"),
        ],
    ),
    "g": (
        (20, 10, 10, 0, 0),
        [
            (f"uh uh had a long {old} problem of my bright", "uh uh have along which go problem of my private")
            for old in ("{ age-old / age old }", "{ age old / age-old }")
        ],
    ),
    "h": (
        (18, 18, 0, 0, 2),
        [
            ("a { b / cd } { e f / ef }", "a {bc / b } { e d / ef}"),
            ("a { b / cd / { g h i / gh i / g ih} bd } { e { i n / th } f / ef }", "a gh i bd e i th f"),
            ("a { b / cd / { g h i / gh i / g ih} bd } { e { i n / th } f / ef }", "a gh i bd e i n th f"),
        ],
    ),
    "i": (
        (20, 9, 10, 1, 4),
        [
            ("this is the ten", "th {e/is} is {th/t} en"),
            ("this is the tea", "th {e/is} is {th/t} en"),
            ("{the / this} is the tea", "th { {e / @} is {w as / i / s / @ } / d is } is {th/t} en"),
            (
                "del fi- del_withnull { fi /@ } skip skip substitution fi- sub_withnull { fi- / @ }",
                "del del_withnull skip skip substitution flag sub_withnull flag",
            ),
        ],
    ),
    "empty": ((0, 0, 0, 0, 13), [("", "a b c e f g h i j k"), ("", "d e f")]),
    "alt": (
        (25, 24, 0, 1, 1),
        [
            *(("a { c / @ } d", other) for other in ("a c d", "a c i d", "a d")),
            *(("a { c / @ } d", other) for other in ("a {c / @} d", "a {@ / c} d", "a {d / @} d")),
            *(("a d e", "a d @ e"), ("a d @ e", "a d e"), ("a d c", "a {e- / @} c")),
        ],
    ),
}


def counts(reference, hypothesis):
    networks = (word_networks.network(word_networks.parse(text)) for text in (reference, hypothesis))
    found = alignment.align(*networks)
    return found.correct, found.substitutions, found.deletions, found.insertions


@pytest.mark.parametrize("speaker", PUBLISHED)
def test_the_counts_of_sclites_published_example(speaker):
    expected, utterances = PUBLISHED[speaker]
    correct, substitutions, deletions, insertions = map(sum, zip(*itertools.starmap(counts, utterances), strict=True))
    assert (correct + substitutions + deletions, correct, substitutions, deletions, insertions) == expected


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("a b", "b c", (1, 0, 1, 1)),  # cheaper than two substitutions
        ("a b c", "d e f", (0, 3, 0, 0)),
        ("a b", "c", (0, 1, 1, 0)),
        ("a", "b c", (0, 1, 0, 1)),
        ("@", "", (0, 0, 0, 0)),
        ("and/or", "and/or", (1, 0, 0, 0)),
    ],
)
def test_costs_by_hand(reference, hypothesis, expected):
    assert counts(reference, hypothesis) == expected


def readings(sequence):
    """Return all readings of a parsed transcript."""
    options = [
        [reading for each in item.alternatives for reading in readings(each)]
        if isinstance(item, word_networks.Choice)
        else [[item] if item else []]
        for item in sequence
    ]
    return [list(itertools.chain.from_iterable(parts)) for parts in itertools.product(*options)]


def cost(found):
    _, substitutions, deletions, insertions = found
    return 4 * substitutions + 3 * (deletions + insertions)


def test_the_best_pair_of_readings_is_found():
    rng = random.Random(3)

    def text(depth=0):
        parts = []
        for _ in range(rng.randint(1, 4)):
            if depth < 2 and rng.random() < 0.3:
                parts.append("{ " + " / ".join(rng.choice([text(depth + 1), "@"]) for _ in range(2)) + " }")
            else:
                parts.append(rng.choice("abc"))
        return " ".join(parts)

    for _ in range(200):
        reference, hypothesis = text(), text()
        pairs = itertools.product(readings(word_networks.parse(reference)), readings(word_networks.parse(hypothesis)))
        best = min(cost(counts(" ".join(first), " ".join(second))) for first, second in pairs)
        assert cost(counts(reference, hypothesis)) == best


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a { b / c", "a brace without its partner"),
        ("a } b", "a brace without its partner"),
        ("a { b / } c", "an empty alternative"),
        ("a { } c", "an empty alternative"),
    ],
)
def test_notation_that_is_wrong(text, message):
    with pytest.raises(BadInput, match=message):
        word_networks.parse(text)
