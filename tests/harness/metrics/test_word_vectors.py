"""Scores of word vectors from questions in memory: against a search word by word, and as from a file."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabench.harness.metrics import word_vectors as metrics
from vocabench.harness.word_vectors.question_files import (
    ScoredPair,
    Section,
    read_analogies,
    read_similarity,
)
from vocabench.impls.errors import BadInput

LETTERS = "abcdefgh"


def unit(vector):
    length = np.linalg.norm(vector)
    return vector / length if length else vector


def answer(vectors_VE, a, b, c):
    """Search the words one by one, as word2vec's compute-accuracy does."""
    target = unit(vectors_VE[b]) - unit(vectors_VE[a]) + unit(vectors_VE[c])
    cosines = {word: float(target @ unit(vectors_VE[word])) for word in range(len(vectors_VE)) if word not in (a, b, c)}
    return max(cosines, key=cosines.__getitem__)


questions = st.lists(st.tuples(*[st.sampled_from(LETTERS)] * 4), max_size=12)


@given(st.lists(st.tuples(st.sampled_from(["x", "y"]), questions), max_size=3), st.integers(0, 99), st.integers(4, 8))
def test_analogies_are_those_of_a_search_word_by_word(asked, seed, vocab):
    vectors_VE = np.random.default_rng(seed).standard_normal((vocab, 3))
    word_ids = {word: row for row, word in enumerate(LETTERS[:vocab])}
    score = metrics.analogies([Section(name, tuple(q)) for name, q in asked], vectors_VE, word_ids)
    every = [(name, q) for name, section in asked for q in section]
    known = [(name, tuple(word_ids[word] for word in q)) for name, q in every if set(q) <= set(word_ids)]
    right = [(name, answer(vectors_VE, *q[:3]) == q[3]) for name, q in known]
    assert (score.used, score.skipped) == (len(known), len(every) - len(known))
    assert score.value == (pytest.approx(np.mean([hit for _, hit in right])) if right else None)
    for name in {name for name, _ in right}:
        hits = [hit for other, hit in right if other == name]
        assert score.detail[name] == (sum(hits), len(hits))


def test_a_large_vocabulary_is_searched_in_batches(monkeypatch):
    vectors_VE = np.random.default_rng(0).standard_normal((8, 3))
    word_ids = {word: row for row, word in enumerate(LETTERS)}
    section = Section("any", tuple(itertools.permutations(LETTERS, 4)))
    whole = metrics.analogies([section], vectors_VE, word_ids)
    monkeypatch.setattr(metrics, "_BATCH_SCORES", 17)
    assert metrics.analogies([section], vectors_VE, word_ids) == whole


def test_a_file_gives_the_questions_that_it_holds(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text("\ufeff: Capitals \nAthens Greece Oslo Norway\n\n: empty\n: Capitals\na b c d\n", encoding="utf-8")
    assert read_analogies(path) == [Section("Capitals", (("athens", "greece", "oslo", "norway"), ("a", "b", "c", "d")))]
    path.write_text("Word 1,Word 2,Score\nTiger;Cat\t7.35\n# end\n")
    assert read_similarity(path) == [ScoredPair("tiger", "cat", 7.35)]


@pytest.mark.parametrize(("line", "count"), [("a b c", 3), ("a b c d e", 5), ("a", 1)])
def test_a_line_that_has_not_four_words_is_named(tmp_path, line, count):
    path = tmp_path / "questions.txt"
    path.write_text(f": first\na b c d\n{line}\n")
    with pytest.raises(BadInput, match=f"^questions.txt, line 3: {count} words: allowed: four, or ': name of a sec"):
        read_analogies(path)
    with pytest.raises(BadInput, match="line 3"):
        metrics.analogies(path, np.eye(3), {})
