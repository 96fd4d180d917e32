"""ROUGE against values worked out by hand and those of Lin 2004; bootstrap against what is known of it."""

import dataclasses
from importlib import metadata

import numpy as np
import pytest
from rouge_score import rouge_scorer
from scipy import stats

from vocabench.harness.metrics import bootstrap, rouge
from vocabench.harness.metrics.rouge import DUC_2004, GIGAWORD, Rouge
from vocabench.impls.errors import BadInput

PRECISION, RECALL, F1 = range(3)
GUNMAN = "police killed the gunman"


def scores(candidate, *references, **settings):
    """(3, 3): measure by quantity."""
    return Rouge(**settings).per_sample([candidate], [references])[0]


@pytest.mark.parametrize(
    ("candidate", "rouge1", "rouge2", "rougeL"),
    [
        # Lin 2004, section 3.1: ROUGE-2 cannot tell the first two apart, ROUGE-L can; of the last two, the reverse.
        ("police kill the gunman", 3 / 4, 1 / 3, 3 / 4),
        ("the gunman kill police", 3 / 4, 1 / 3, 2 / 4),
        ("the gunman police killed", 4 / 4, 2 / 3, 2 / 4),
    ],
)
@pytest.mark.parametrize("lcs", rouge.LCS)
def test_the_papers_sentences(candidate, rouge1, rouge2, rougeL, lcs):
    # As long as the reference: precision, recall and F1 are the same.
    expected = np.repeat([[rouge1], [rouge2], [rougeL]], 3, axis=1)
    np.testing.assert_allclose(scores(candidate, GUNMAN, lcs=lcs), expected)


def test_the_papers_union_of_subsequences():
    """Lin 2004, section 3.2: w1 w2 of the one sentence and w1 w3 w5 of the other cover 4 of 5 words."""
    reference, first, second = "w1 w2 w3 w4 w5", "w1 w2 w6 w7 w8", "w1 w3 w8 w9 w5"
    for candidate in (f"{first}\n{second}", f"{second}\n{first}"):
        np.testing.assert_allclose(scores(candidate, reference)[2], [4 / 10, 4 / 5, 8 / 15])
    # As one sequence the order of the sentences matters: w1 w3 w5 is the longest then.
    np.testing.assert_allclose(scores(f"{second}\n{first}", reference, lcs="whole")[2], [3 / 10, 3 / 5, 6 / 15])


def test_hits_are_clipped():
    expected = [
        [3 / 4, 3 / 6, 6 / 10],  # "the" twice and "cat"
        [1 / 3, 1 / 5, 2 / 8],  # "the cat"
        [2 / 4, 2 / 6, 4 / 10],
    ]
    np.testing.assert_allclose(scores("the the the cat", "the cat sat on the mat"), expected)


def test_words():
    assert scores("U.S.-born; 12 CAF\u00c9S", "u s born 12 caf s")[0, F1] == 1
    assert scores("##", "1999")[0].tolist() == [0, 0, 0]


def test_stemming():
    np.testing.assert_allclose(scores("police kill the gunman", GUNMAN, stemming=True), 1)


@pytest.mark.parametrize(("candidate", "reference"), [("", "a b"), ("a b", "..."), ("", "!"), ("x", "y")])
def test_nothing_to_match(candidate, reference):
    for rule in rouge.REFERENCES:
        np.testing.assert_array_equal(scores(candidate, reference, "?", references=rule), np.zeros((3, 3)))


def test_one_word_has_no_bigram():
    np.testing.assert_allclose(scores("a", "a"), [[1, 1, 1], [0, 0, 0], [1, 1, 1]])


REFERENCES = ("a b x", "a b c e f", "z")  # of "a b c d": 2 of 3, 3 of 5 and 0 of 1 words


def test_average_adds_up_hits_and_words():
    assert scores("a b c d", *REFERENCES, references="average")[0] == pytest.approx([5 / 12, 5 / 9, 10 / 21])
    # Bigrams: 1 of 2, 2 of 4, 0 of 0, against 3 each time.
    assert scores("a b c d", *REFERENCES, references="average")[1] == pytest.approx([3 / 9, 3 / 6, 6 / 15])


def test_best_is_by_recall_and_for_each_measure():
    best = scores("a b c d", *REFERENCES, references="best")
    assert best[0] == pytest.approx([2 / 4, 2 / 3, 4 / 7])
    # Of equal recall, 1/2 and 2/4, the first.
    assert best[1] == pytest.approx([1 / 3, 1 / 2, 2 / 5])
    mixed = scores("a b c d", "a b y", "d b c a c", references="best")
    assert mixed[0, RECALL] == pytest.approx(4 / 5)
    assert mixed[1, RECALL] == pytest.approx(1 / 2)


def test_jackknifing_averages_the_best_of_all_but_one():
    # Without the first, the second is best; without either of the others, the first.
    jackknife = scores("a b c d", *REFERENCES, references="jackknife")[0]
    expected = [(3 / 4 + 2 / 4 + 2 / 4) / 3, (3 / 5 + 2 / 3 + 2 / 3) / 3, (6 / 9 + 4 / 7 + 4 / 7) / 3]
    assert jackknife == pytest.approx(expected)


def test_of_one_reference_all_rules_are_the_same():
    by_rule = [scores("a b c d", REFERENCES[1], references=rule) for rule in rouge.REFERENCES]
    np.testing.assert_array_equal(by_rule[0], by_rule[1])
    np.testing.assert_array_equal(by_rule[0], by_rule[2])


def test_a_cut_falls_between_characters():
    assert rouge.cut("x" * 74 + "\u00e9t", 75) == "x" * 74
    assert rouge.cut("x" * 73 + "\u00e9t", 75) == "x" * 73 + "\u00e9"
    assert rouge.cut("x" * 72 + "\U0001f600", 75) == "x" * 72
    assert rouge.cut("short", 75) == "short"
    assert rouge.cut("all of it", 0) == "all of it"


def test_what_the_cut_leaves_of_a_word_is_a_word():
    # "police k" against "police killed": one of two words, either way.
    assert scores("police killed them", "police killed", limit=8)[0] == pytest.approx([1 / 2, 1 / 2, 1 / 2])
    # The reference is cut to "police k" too.
    assert scores("police killed them", "police killed", limit=8, cuts_references=True)[0] == pytest.approx([1, 1, 1])


def test_duc_2004():
    words = [f"word{number:02}" for number in range(20)]  # 7 bytes with the space: 10 whole, 5 bytes of the eleventh
    text = " ".join(words)
    values = DUC_2004.per_sample([text], [[" ".join(words[:10]), " ".join(words[5:10])]])
    assert values[0, 0, RECALL] == 1
    assert values[0, 0, PRECISION] == pytest.approx(15 / 22)
    assert GIGAWORD.per_sample([text], [[text]])[0, :, F1].tolist() == [1, 1, 1]


def test_counts_are_the_librarys_own():
    rng = np.random.default_rng(0)

    def text():
        return "\n".join(" ".join(rng.choice(list("abcdefg"), size=rng.integers(0, 9))) for _ in range(3))

    for lcs, name in (("whole", "rougeL"), ("lines", "rougeLsum")):
        scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", name])
        for _ in range(50):
            candidate, reference = text(), text()
            expected = scorer.score(reference, candidate)
            theirs = [list(expected[measure]) for measure in ("rouge1", "rouge2", name)]
            np.testing.assert_allclose(scores(candidate, reference, lcs=lcs), theirs, atol=1e-12)


def test_the_signature_tells_every_setting():
    version = metadata.version("rouge-score")
    assert GIGAWORD.signature == (
        f"rouge-score:{version}|stemming:no|tokens:lower-case-a-z-0-9|lcs:lines|references:average|limit:none|"
        "mean:of-samples"
    )
    assert "limit:75-bytes-of-both" in DUC_2004.signature
    changes = {
        "stemming": True,
        "tokens": "unicode",
        "lcs": "whole",
        "references": "jackknife",
        "limit": 10,
        "cuts_references": False,
    }
    assert set(changes) == {field.name for field in dataclasses.fields(Rouge)}
    signatures = {dataclasses.replace(DUC_2004, **{name: value}).signature for name, value in changes.items()}
    assert len(signatures | {DUC_2004.signature}) == len(changes) + 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lcs": "line"}, "unknown lcs 'line': did you mean 'lines'"),
        ({"tokens": "unicod"}, "unknown rule for tokens 'unicod': did you mean 'unicode'"),
        ({"tokens": "unicode", "stemming": True}, "stemming with tokens=unicode"),
        ({"references": "jacknife"}, "did you mean 'jackknife'"),
        ({"limit": -1}, "limit of -1 bytes"),
        ({"cuts_references": True}, "limit of 0 bytes"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(BadInput, match=message):
        Rouge(**settings)


@pytest.mark.parametrize(
    ("candidates", "references", "message"),
    [
        ([], [], "0 candidates, references for 0"),
        (["a"], [["a"], ["b"]], "1 candidates, references for 2"),
        (["a", "b"], [["a"], []], "sample 2: references"),
        (["a"], ["abc"], "sample 1: references 'abc': allowed: a list"),
    ],
)
def test_samples_that_cannot_be_scored(candidates, references, message):
    with pytest.raises(BadInput, match=message):
        GIGAWORD.per_sample(candidates, references)


def test_a_system_is_the_mean_of_its_samples():
    values_SMQ = GIGAWORD.per_sample([GUNMAN, "the gunman kill police"], [[GUNMAN], [GUNMAN]])
    assert values_SMQ.shape == (2, 3, 3)
    means = rouge.aggregate(values_SMQ)
    assert means["rouge1"]["f1"].value == pytest.approx(7 / 8)
    assert means["rouge2"]["recall"].value == pytest.approx(2 / 3)
    # Of two samples a resample has both, or one twice: a quarter of them each of these.
    assert (means["rougeL"]["f1"].low, means["rougeL"]["f1"].high) == pytest.approx((0.5, 1.0))


def test_intervals_are_of_the_mean_and_seeded():
    values_SQ = np.random.default_rng(0).normal(size=(500, 2)) * [1, 3] + [5, 0]
    first = bootstrap.intervals(values_SQ)
    assert first == bootstrap.intervals(values_SQ) != bootstrap.intervals(values_SQ, seed=1)
    for interval, values_S in zip(first, values_SQ.T, strict=True):
        reach = 1.96 * values_S.std() / np.sqrt(500)
        assert interval.value == pytest.approx(values_S.mean())
        assert (interval.low, interval.high) == pytest.approx(
            (values_S.mean() - reach, values_S.mean() + reach), abs=reach / 5
        )


@pytest.mark.parametrize("shift", [0.0, 0.05, 0.1, 0.15])
def test_the_paired_test_is_near_the_t_test(shift):
    rng = np.random.default_rng(1)
    shared_S1 = rng.normal(size=(400, 1)) * 10  # what pairing takes out
    first_SQ, second_SQ = shared_S1 + rng.normal(size=(400, 1)) + shift, shared_S1 + rng.normal(size=(400, 1))
    (difference,) = bootstrap.differences(first_SQ, second_SQ, resamples=4000)
    expected = stats.ttest_rel(first_SQ[:, 0], second_SQ[:, 0])
    assert difference.p_value == pytest.approx(expected.pvalue, abs=0.03)
    assert difference.interval.value == pytest.approx(float((first_SQ - second_SQ).mean()))
    bounds = expected.confidence_interval()
    assert (difference.interval.low, difference.interval.high) == pytest.approx((bounds.low, bounds.high), abs=0.02)


def test_systems_that_do_not_differ_and_that_always_do():
    values_SMQ = GIGAWORD.per_sample([GUNMAN, "the gunman kill police"] * 10, [[GUNMAN]] * 20)
    same = rouge.compare(values_SMQ, values_SMQ)["rouge1"]["f1"]
    assert (same.interval.value, same.interval.low, same.interval.high, same.p_value) == (0, 0, 0, 1)
    worse = rouge.compare(values_SMQ, values_SMQ - 0.1)["rouge2"]["recall"]
    assert worse.p_value == pytest.approx(1 / 1001)
    assert worse.interval.low == pytest.approx(0.1)
    with pytest.raises(BadInput, match="20 and 19 samples"):
        rouge.compare(values_SMQ, values_SMQ[1:])


def test_a_difference_of_two_samples_is_half_likely():
    # Differences 0 and 1: both resamples that have one of them twice, half of all, lie 0.5 off.
    (difference,) = bootstrap.differences(np.array([[0.0], [1.0]]), np.zeros((2, 1)), resamples=4000)
    assert difference.p_value == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    "text",
    [
        "кошка села на коврик",
        "बिल्ली चटाई पर बैठी",
        "猫 坐 在 垫子 上",
        "猫坐在垫子上",
        "η γάτα κάθισε",
        "قطة على حصيرة",
        "แมวนั่ง",
    ],
)
def test_scripts_without_words_are_refused_and_have_words_of_their_own(text):
    with pytest.raises(BadInput, match="rouge_tokens=unicode"):
        GIGAWORD.per_sample([text], [[text]])
    unicode = dataclasses.replace(GIGAWORD, tokens="unicode")
    assert unicode.per_sample([text], [[text]])[0, 0].tolist() == [1.0, 1.0, 1.0]
    assert unicode.per_sample(["other words"], [[text]])[0, 0].tolist() == [0.0, 0.0, 0.0]
    assert "tokens:lower-case-words-of-any-script" in unicode.signature


def test_words_of_any_script_are_canonical_and_lower_case():
    unicode = dataclasses.replace(GIGAWORD, tokens="unicode")
    assert unicode.per_sample(["E\u0301te\u0301, 3!"], [["\u00e9t\u00e9 3"]])[0, :, 2].tolist() == [1.0, 1.0, 1.0]
    assert unicode.per_sample(["हिन्दी"], [["हिन्दु"]])[0, 0, 2] == 0.0
    assert unicode.per_sample(["猫坐"], [["猫在"]])[0, 0, 2] == 0.5


def test_accents_alone_do_not_refuse_a_text():
    assert GIGAWORD.per_sample(["the café"], [["the café opens"]])[0, 0, 2] > 0
