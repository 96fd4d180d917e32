"""Words of many scripts, with their marks and in one normal form, wherever text is split."""

import json
import unicodedata

import pytest

from vocabench.harness.datasets.pairs import encoded_pairs
from vocabench.harness.datasets.text import corpora, tokenization
from vocabench.harness.speech.text import TextRule
from vocabench.harness.word_vectors import question_files

WORDS = {
    "Hindi": "हिन्दी",
    "Tamil": "தமிழ்",
    "Arabic with vowels": "مُحَمَّد",
    "Hebrew with points": "שָׁלוֹם",
    "French": "été",
    "Turkish": "ışık",
    "Russian": "ёлка",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "cache"))


def forms(word):
    return [unicodedata.normalize(form, word) for form in ("NFC", "NFD")]


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_a_word_of_running_text_is_one_word(word):
    for form in forms(word):
        assert tokenization.words_of(f"{form}, {form}") == [forms(word)[0], ",", forms(word)[0]]


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_a_corpus_has_one_word_for_both_forms(tmp_path, word):
    (tmp_path / "train.txt").write_text("\r".join(forms(word)), encoding="utf-8")
    (tmp_path / "valid.txt").write_text(word, encoding="utf-8")
    corpus = corpora.load(str(tmp_path))
    assert dict(zip(corpus.words, corpus.counts_V.tolist(), strict=True)) == {forms(word)[0]: 2, "<eos>": 2, "<unk>": 0}


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_summaries_have_one_word_for_both_forms(tmp_path, word):
    lines = [json.dumps({"text": form, "summary": form}) for form in forms(word)]
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    pairs = encoded_pairs.load(str(tmp_path))
    for side in (pairs.sources, pairs.summaries):
        assert side.counts_V[side.words.index(forms(word)[0])] == 2


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_a_transcript_is_the_same_in_both_forms(word):
    rule = TextRule()
    assert rule(forms(word)[0]) == rule(forms(word)[1]) == forms(word)[0]


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\x85"])
def test_questions_ask_for_the_words_of_a_vocabulary(tmp_path, word, end):
    nfc, nfd = forms(word)
    path = tmp_path / "questions.txt"
    path.write_bytes(f"{nfd} {nfc} {nfd} {nfc}{end}{nfc} {nfc} {nfc} {nfc}".encode())
    (section,) = question_files.read_analogies(path)
    assert section.questions == ((nfc,) * 4,) * 2
    path.write_bytes(f"{nfd} {nfc} 1{end}{nfc} {nfd} 2".encode())
    assert [(pair.first, pair.second) for pair in question_files.read_similarity(path)] == [(nfc, nfc)] * 2
