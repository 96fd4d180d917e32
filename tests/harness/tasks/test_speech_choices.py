"""Speech: its vocabulary of units, the choice of languages, and the paper's down-sampling."""

import numpy as np
import pytest

from tests.harness.datasets.recordings import folder_of, record
from vocabench.harness.datasets.speech import speech_corpora, vocabulary
from vocabench.harness.speech import languages
from vocabench.impls.errors import BadInput

pytestmark = pytest.mark.usefixtures("empty_cache")


def spoken(tmp_path, **others):
    train = [
        record("1.wav", "aab", "ba", phones="a t\u0361\u0283"),
        record("2.wav", "ac", "tt", phones="a b"),
        record("3.wav", "a", "uz"),
    ]
    return folder_of(tmp_path / "spoken", train, **others)


def test_the_vocabulary_is_counted_and_ranked(tmp_path):
    vocabulary = speech_corpora.load(spoken(tmp_path), min_count=2, with_language=True).vocabulary
    assert vocabulary.units == ("a", "<eos>", "<unk>", "<ba>", "<tt>", "<uz>")
    assert vocabulary.counts_V.tolist() == [4, 3, 2, 1, 1, 1]


def test_sequences_there_and_back(tmp_path):
    speech = speech_corpora.load(spoken(tmp_path), with_language=True)
    first = speech.splits["train"][0]
    ids_L = speech.vocabulary.encode(first)
    assert [speech.vocabulary.units[unit_id] for unit_id in ids_L] == ["<ba>", "a", "a", "b", "<eos>"]
    assert speech.vocabulary.decode(ids_L) == speech.transcript(first) == "aab"
    assert speech.vocabulary.decode([*ids_L, *ids_L]) == "aab"
    phones = speech_corpora.load(spoken(tmp_path), units="phones")
    assert phones.vocabulary.decode(phones.vocabulary.encode(phones.splits["train"][0])) == "a t\u0283"
    assert phones.skipped == {"no transcript": ["3.wav"]}


def test_languages_are_chosen_and_held_out(tmp_path):
    test = [record("4.wav", "a", "ba"), record("5.wav", "axy", "uz"), record("6.wav", "axy", "ba")]
    folder = spoken(tmp_path, valid=[record("7.wav", "b", "ba")], test=test)

    def chosen(**choices):
        splits = speech_corpora.load(folder, **choices).splits
        return {split: [utterance.language for utterance in utterances] for split, utterances in splits.items()}

    assert chosen() == {"train": ["ba", "tt", "uz"], "valid": ["ba"], "test": ["ba"]}
    assert chosen(languages=["tt", "ba"]) == {"train": ["ba", "tt"], "valid": ["ba"], "test": ["ba"]}
    assert chosen(held_out=["uz"]) == {"train": ["ba", "tt"], "valid": ["ba"], "test": ["uz"]}
    with pytest.raises(BadInput, match=r"'fr': .*allowed: ba, tt, uz, Romance, Slavic, Turkic"):
        chosen(languages=["fr"])


def test_another_corpus_by_the_vocabulary_of_the_first(tmp_path):
    first = speech_corpora.load(spoken(tmp_path))
    other = folder_of(tmp_path / "other", [record("1.wav", "bca"), record("2.wav", "xyz")])
    loaded = speech_corpora.load(other, vocabulary=first.vocabulary)
    assert [utterance.id for utterance in loaded.splits["train"]] == ["1.wav"]
    assert loaded.skipped == {"outside the vocabulary": ["2.wav"]}
    assert loaded.vocabulary is first.vocabulary


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"units": "phone"}, "unknown units 'phone': did you mean 'phones'"),
        ({"outside": "drop"}, "unknown rule for outside 'drop': allowed: skip, unknown"),
        ({"min_count": 0}, "min_count=0"),
    ],
)
def test_settings_that_cannot_be(tmp_path, choices, message):
    with pytest.raises(BadInput, match=message):
        speech_corpora.load(spoken(tmp_path), **choices)


def test_the_papers_formula():
    probabilities = languages.probabilities({"ru": 900, "uk": 100, "be": 4})
    assert probabilities == pytest.approx({"ru": 30 / 42, "uk": 10 / 42, "be": 2 / 42})
    assert languages.probabilities({"ru": 900, "uk": 100}, alpha=1) == pytest.approx({"ru": 0.9, "uk": 0.1})
    assert languages.probabilities({"ru": 900, "uk": 100}, alpha=0) == {"ru": 0.5, "uk": 0.5}
    for counts, alpha in (({}, 0.5), ({"ru": 0}, 0.5), ({"ru": 1}, -1), ({"ru": 1}, float("nan"))):
        with pytest.raises(BadInput):
            languages.probabilities(counts, alpha)


def test_down_sampling_follows_the_formula():
    """Section 3.1: what is left adds up to lambda times the corpus, by p^alpha, and no language has more than all."""
    hours = {"ru": 900.0, "uk": 100.0}
    ratios = languages.ratios(hours, keep=0.1)
    left = {language: ratio * hours[language] for language, ratio in ratios.items()}
    assert sum(left.values()) == pytest.approx(100)
    assert left["ru"] / left["uk"] == pytest.approx(3)  # the square root of 9
    assert languages.ratios(hours, keep=0.5, alpha=1) == pytest.approx({"ru": 0.5, "uk": 0.5})
    assert languages.ratios(hours, keep=1.0)["uk"] == 1.0  # 2.5 times its size by the formula
    with pytest.raises(BadInput, match="keep=0: allowed: above 0"):
        languages.ratios(hours, keep=0)


def test_down_sampling_keeps_utterances_once_and_the_same_ones():
    rng = np.random.default_rng(0)
    ids = [f"{number}.wav" for number in range(1000)]
    spoken, seconds = ["ru"] * 900 + ["uk"] * 100, rng.uniform(1, 10, 1000)
    kept_P = languages.down_sample(ids, spoken, seconds.tolist(), {"ru": 0.2, "uk": 0.5})
    assert len(set(kept_P.tolist())) == len(kept_P)
    for language, share in (("ru", 0.2), ("uk", 0.5)):
        of_language = np.array([place for place in range(1000) if spoken[place] == language])
        left = seconds[np.intersect1d(kept_P, of_language)].sum()
        assert left == pytest.approx(share * seconds[of_language].sum(), abs=10)
    # A model of one language is trained on the same utterances of it.
    alone_P = languages.down_sample(ids[900:], spoken[900:], seconds[900:].tolist(), {"uk": 0.5})
    assert (alone_P + 900).tolist() == kept_P[kept_P >= 900].tolist()
    everything = languages.down_sample(ids, spoken, seconds.tolist(), {"ru": 1.0, "uk": 1.0})
    assert everything.tolist() == list(range(1000))


def test_counts_can_give_every_language_the_same_weight():
    texts = [np.array([0, 0, 1], np.int32), np.array([0, 0, 1], np.int32), np.array([1, 2], np.int32)]
    counts_V = vocabulary.per_language(texts, ["ru", "ru", "uk"], 4)
    np.testing.assert_allclose(counts_V / counts_V.sum(), [1 / 3, 5 / 12, 1 / 4, 0], atol=1e-6)


def test_groups():
    assert languages.expand(["Turkic", "ru", "tt"]) == ("ba", "ky", "tr", "tt", "uz", "ru")
    assert len(set(languages.LANGUAGES)) == 15
