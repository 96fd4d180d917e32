"""Error rates against values worked out by hand and a plain edit distance; phones and characters by their rules."""

import dataclasses
from importlib import metadata

import jiwer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabench.harness.metrics import error_rate
from vocabench.harness.metrics.error_rate import CharacterErrorRate, PhoneErrorRate
from vocabench.harness.speech.phones import PhoneRule
from vocabench.harness.speech.text import TextRule
from vocabench.impls.errors import BadInput

CER, PER = CharacterErrorRate(), PhoneErrorRate()


def counts(reference, hypothesis):
    return CER.per_utterance([reference], [hypothesis])[0].tolist()


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        # Levenshtein's textbook pairs, then the ends: substitutions, deletions, insertions, length.
        ("kitten", "sitting", [2, 0, 1, 6]),
        ("saturday", "sunday", [1, 2, 0, 8]),
        ("abc", "abc", [0, 0, 0, 3]),
        ("abc", "", [0, 3, 0, 3]),
        ("", "abc", [0, 0, 3, 0]),
        ("", "", [0, 0, 0, 0]),
        ("a b", "ab", [0, 1, 0, 3]),
        ("Ëa-b!", "ëa b", [0, 0, 0, 4]),
    ],
)
def test_by_hand(reference, hypothesis, expected):
    assert counts(reference, hypothesis) == expected


def distance(first, second):
    """Wagner and Fischer 1974, row by row."""
    row = list(range(len(second) + 1))
    for i, x in enumerate(first, start=1):
        above, row = row, [i]
        for j, y in enumerate(second, start=1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
    return row[-1]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.text("abc ", max_size=12), st.text("abc ", max_size=12)), min_size=1, max_size=4))
def test_errors_are_the_edit_distance(pairs):
    references, hypotheses = ([pair[side] for pair in pairs] for side in (0, 1))
    errors_U4 = CER.per_utterance(references, hypotheses)
    for (reference, hypothesis), (subs, dels, ins, length) in zip(pairs, errors_U4.tolist(), strict=True):
        reference, hypothesis = TextRule()(reference), TextRule()(hypothesis)
        assert subs + dels + ins == distance(reference, hypothesis)
        assert length == len(reference)
        assert length - dels + ins == len(hypothesis)
    swapped_U4 = CER.per_utterance(hypotheses, references)
    assert (swapped_U4[:, :3].sum(axis=1) == errors_U4[:, :3].sum(axis=1)).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.text("abc", min_size=1), st.text("abc", min_size=1)), min_size=1, max_size=4))
def test_the_pooled_rate_is_the_librarys(pairs):
    references, hypotheses = ([pair[side] for pair in pairs] for side in (0, 1))
    pooled_rate = error_rate.rate(CER.per_utterance(references, hypotheses))
    assert pooled_rate == pytest.approx(jiwer.cer(references, hypotheses))


def test_errors_are_pooled_over_references():
    errors_U4 = CER.per_utterance(["ab", "abcdefgh"], ["xy", "abcdefgh"])
    assert error_rate.rate(errors_U4) == pytest.approx(2 / 10)  # and not the mean of 1 and 0
    assert error_rate.rate(CER.per_utterance(["a", ""], ["a", "xy"])) == 2


def test_an_interval_is_of_the_pooled_rate():
    interval = error_rate.aggregate(CER.per_utterance(["ab", "abcdefgh"], ["xy", "abcdefgh"]))
    # A resample has both, or one of them twice: rates 2/10, 2/2 and 0.
    assert (interval.value, interval.low, interval.high) == pytest.approx((0.2, 0, 1))
    assert interval == error_rate.aggregate(CER.per_utterance(["ab", "abcdefgh"], ["xy", "abcdefgh"]))


def test_an_interval_is_near_the_delta_methods():
    rng = np.random.default_rng(0)
    length_U = rng.integers(5, 60, size=800)
    errors_U = rng.binomial(length_U, 0.2)
    errors_U4 = np.stack([errors_U, 0 * length_U, 0 * length_U, length_U], axis=1)
    interval = error_rate.aggregate(errors_U4)
    rate = errors_U.sum() / length_U.sum()
    reach = 1.96 * np.std(errors_U - rate * length_U) / np.sqrt(800) / length_U.mean()
    assert interval.value == pytest.approx(rate)
    assert (interval.low, interval.high) == pytest.approx((rate - reach, rate + reach), abs=reach / 5)


def test_empty_references_add_errors_alone():
    errors_U4 = CER.per_utterance(["", "abcd"], ["x", "abcd"])
    interval = error_rate.aggregate(errors_U4)
    # Resamples of nothing but the empty reference have no rate.
    assert (interval.value, interval.low, interval.high) == pytest.approx((0.25, 0, 0.25))
    with pytest.raises(BadInput, match="2 references without a symbol"):
        error_rate.rate(CER.per_utterance(["", "!"], ["x", ""]))


def test_two_systems_over_the_same_references():
    references = ["abcdefgh", "ab", "abcd"] * 20
    worse_U4 = CER.per_utterance(references, ["xbcdefgh", "xb", "xbcd"] * 20)
    better_U4 = CER.per_utterance(references, references)
    comparison = error_rate.compare(worse_U4, better_U4)
    assert comparison.interval.value == pytest.approx(3 / 14)
    assert comparison.interval.low > 0
    assert comparison.p_value == pytest.approx(1 / 1001)
    same = error_rate.compare(worse_U4, worse_U4)
    assert (same.interval.value, same.interval.low, same.interval.high, same.p_value) == (0, 0, 0, 1)
    with pytest.raises(
        BadInput, match=r"60 utterances of 280 symbols and 59 utterances .* allowed: the same references"
    ):
        error_rate.compare(worse_U4, better_U4[1:])
    with pytest.raises(BadInput, match="allowed: the same references"):
        error_rate.compare(worse_U4, CER.per_utterance(references[::-1], references))


@pytest.mark.parametrize(
    ("references", "hypotheses", "message"),
    [([], [], "0 references, 0 hypotheses"), (["a"], ["a", "b"], "1 references, 2 hypotheses")],
)
def test_utterances_that_cannot_be_scored(references, hypotheses, message):
    for metric in (CER, PER):
        with pytest.raises(BadInput, match=message):
            metric.per_utterance(references, hypotheses)


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Côte d\u2019Ivoire", "fr", "côte d'ivoire"),
        ("  'Bonjour',\u00a0dit-elle !\n", "fr", "bonjour dit elle"),
        ("ISPARTA İli", "tr", "\u0131sparta ili"),
        ("ISPARTA", "it", "isparta"),
        ("e\u0301", "", "\u00e9"),
        ("O\u02bbzbek so\u02bbm (UZS)", "uz", "o\u02bbzbek so\u02bbm uzs"),
        ("a\ufffdb\u200b", "", "a\ufffdb"),
        ("...", "", ""),
    ],
)
def test_text_in_its_one_form(text, language, expected):
    assert TextRule()(text, language) == expected
    assert TextRule()(expected, language) == expected


def test_text_may_stay_as_it_is():
    assert TextRule(case="keep", punctuation="keep")(" Ab,  c! ") == "Ab, c!"
    assert TextRule(spaces="drop")("a b\tc") == "abc"


@pytest.mark.parametrize(
    ("transcript", "settings", "expected"),
    [
        # The UCLA corpus's Abkhaz, and its affricate without a tie.
        ("a d\u0361\u0292 \u0283\u02b2", {}, ["a", "d\u0292", "\u0283\u02b2"]),
        ("a d\u0292 \u0283\u02b2", {"diacritics": "drop"}, ["a", "d\u0292", "\u0283"]),
        ("W IH M", {}, ["W", "IH", "M"]),
        ("\u02c8a\u02d0 \u02cc t\u032a", {}, ["a\u02d0", "t\u032a"]),
        ("\u02c8a\u02d0 t\u032a", {"stress": "keep", "length": "drop"}, ["\u02c8a", "t\u032a"]),
        ("t\u0361\u0283\u02b0a\u02c8na\u0303\u02d0 e\u02e5", {"split": "letters"},
         ["t\u0283\u02b0", "a", "n", "\u00e3\u02d0", "e\u02e5"]),
        ("t\u0361\u0283\u02b0a\u02c8n\u00e3\u02d0", {"split": "letters", "diacritics": "drop", "stress": "keep"},
         ["t\u0283", "a", "\u02c8n", "a\u02d0"]),
        ("\u00e7.c\u0327|u\u02de", {"split": "letters", "diacritics": "drop"}, ["\u00e7", "\u00e7", "u"]),
        ("", {}, []),
    ],
)  # fmt: skip
def test_phones_by_the_rule(transcript, settings, expected):
    rule = PhoneRule(**settings)
    assert rule(transcript) == expected
    if rule.split == "spaces":
        assert rule(" ".join(expected)) == expected


def test_phone_errors_are_of_tokens():
    assert PER.per_utterance(["a d\u0361\u0292 \u0283\u02b2 o"], ["d\u0292 \u0283 o"]).tolist() == [[1, 1, 0, 4]]
    loose = PhoneErrorRate(PhoneRule(diacritics="drop"))
    assert loose.per_utterance(["a d\u0361\u0292 \u0283\u02b2"], ["\u02c8a d\u0292 \u0283"]).tolist() == [[0, 0, 0, 3]]


def test_signatures_tell_every_setting():
    version = metadata.version("jiwer")
    assert CER.signature == f"cer|jiwer:{version}|unicode:NFC|case:lower|punctuation:drop|spaces:keep|rate:pooled"
    assert PER.signature.startswith(f"per|jiwer:{version}|unicode:NFC|split:spaces|ties:join|stress:drop|")
    changes = {
        TextRule: {"case": "keep", "punctuation": "keep", "spaces": "drop"},
        PhoneRule: {"split": "letters", "stress": "keep", "length": "drop", "diacritics": "drop"},
    }
    for rule, values in changes.items():
        assert set(values) == {field.name for field in dataclasses.fields(rule)}
        signatures = {dataclasses.replace(rule(), **{name: value}).signature for name, value in values.items()}
        assert len(signatures | {rule().signature}) == len(values) + 1


def test_rules_that_cannot_be():
    with pytest.raises(BadInput, match="unknown rule for case 'lowre': did you mean 'lower'"):
        TextRule(case="lowre")
    with pytest.raises(BadInput, match="unknown rule for split 'letter': did you mean 'letters'"):
        PhoneRule(split="letter")
    with pytest.raises(BadInput, match="unknown rule for stress 'no': allowed: keep, drop"):
        PhoneRule(stress="no")


def test_text_is_in_normal_form_without_the_characters_that_were_dropped():
    assert TextRule()("e\u200d\u0301") == "\u00e9"


@pytest.mark.parametrize("language", ["tr", "tr-TR", "tr_TR", "tur", "TR", "az", "aze", "az-Latn-AZ"])
def test_turkic_letters_are_lower_cased_under_any_code_of_the_language(language):
    assert TextRule()("IŞIK İ", language) == "ışık i"
    assert TextRule()("IŞIK", "trv") == "işik"  # another language, whose code begins alike
