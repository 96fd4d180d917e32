"""Word vectors: pairs from text, GloVe, analogies and similarity, and the task from text to row."""

import numpy as np
import pytest

from vocabench.harness import registry
from vocabench.harness.metrics import word_vectors as metrics
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.suites import Suite
from vocabench.harness.tasks import word_vectors
from vocabench.harness.tasks.shared import bags

FRAMEWORKS = registry.installed_frameworks()
TEXT = np.array([5, 6, 7, 8, 9], dtype=np.int32)


def test_bags_of_context_and_neighbours():
    at_N, reach_N = np.array([0, 2, 4]), np.array([2, 1, 2])
    bags_NJ, targets_N = bags.cbow(TEXT, at_N, reach_N, 2)
    assert targets_N.tolist() == [5, 7, 9]
    assert [sorted(bag[bag >= 0].tolist()) for bag in bags_NJ] == [[6, 7], [6, 8], [7, 8]]
    bags_N1, targets_N = bags.skip_gram(TEXT, at_N, reach_N, 2)
    assert sorted(zip(bags_N1[:, 0].tolist(), targets_N.tolist(), strict=True)) == [
        (5, 6), (5, 7), (7, 6), (7, 8), (9, 7), (9, 8),
    ]  # fmt: skip
    bags_N1, targets_N = bags.pv_dbow(TEXT, np.array([1, 3, 4]), 2)
    assert bags_N1[:, 0].tolist() == [0, 1, 2]
    assert targets_N.tolist() == [6, 8, 9]


def test_analogies(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text(": first\na b c d\na b c c\n\n: second\nA B C D\na b c unknown\n", encoding="utf-8")
    # b - a + c is nearest to d, whatever else there is.
    vectors_VE = np.array([[1.0, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1], [-1, 0, 0]])
    score = metrics.analogies(path, vectors_VE, {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4})
    assert score.value == pytest.approx(2 / 3)
    assert (score.used, score.skipped) == (3, 1)
    assert score.detail == {"first": (1, 2), "second": (1, 1)}


def test_similarity_is_spearmans_correlation(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("Word 1,Word 2,Human (mean)\na,b,9.1\na,c,5\nb,c,1.5\na,unknown,3\n# end\n", encoding="utf-8")
    vectors_VE = np.array([[1.0, 0.0], [0.9, 0.1], [-0.2, 1.0]])
    score = metrics.similarity(path, vectors_VE, {"a": 0, "b": 1, "c": 2})
    # cos(a, b) > cos(b, c) > cos(a, c): ranks 3, 1, 2 against 3, 2, 1.
    assert score.value == pytest.approx(0.5)
    assert (score.used, score.skipped) == (3, 1)


@pytest.mark.parametrize(
    ("metric", "content", "message"),
    [
        (metrics.analogies, b"a b c\n", "line 1: 3 words"),
        (metrics.similarity, b"a b 1\na b c\n", "line 2"),
        (metrics.similarity, b"\xff\xfe\n", "no UTF-8"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path, metric, content, message):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        metric(path, np.eye(3), {"a": 0, "b": 1, "c": 2})


@pytest.fixture
def text(tmp_path):
    """40 words in four groups; a word is followed by words of its own group."""
    rng = np.random.default_rng(0)
    names = [f"{first}{second}" for first in "abcdefgh" for second in "aeiou"]
    words: list[str] = []
    while len(words) < 9000:
        group = rng.integers(4)
        words += [names[10 * group + n] for n in rng.integers(0, 10, 20)]
    for name, piece in (("train", words[:8000]), ("valid", words[8000:])):
        (tmp_path / f"{name}.txt").write_text(" ".join(piece) + "\n")
    pairs = [(0, 1, 9), (0, 10, 1), (11, 12, 9), (13, 22, 1), (21, 25, 9), (23, 34, 1), (31, 33, 9), (5, 36, 1)]
    lines = [f"{names[a]}\t{names[b]}\t{score}" for a, b, score in pairs]
    (tmp_path / "pairs.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "questions.txt").write_text(": any\naa ae ai ao\n")
    return tmp_path


def rows(text, framework, method, **settings):
    folder = text / "corpus"
    folder.mkdir(exist_ok=True)
    for split in ("train", "valid"):
        (folder / f"{split}.txt").write_bytes((text / f"{split}.txt").read_bytes())
    cells = Suite.load("word_vectors").cells(
        Selection(
            frameworks=[framework],
            methods=None if method == "glove" else [method],
            tasks=["word_vectors"],
            dataset=str(folder),
            precision=["float64" if framework == "numpy" else "float32"],
            settings={key: str(value) for key, value in settings.items()},
        )
    )
    cell = next(cell for cell in cells if cell.method == method)
    result = word_vectors.run(cell, lambda progress: None)
    return {m.quantity: m for m in result.measurements}


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("objective", ["cbow", "skip_gram", "pv_dbow"])
def test_words_of_a_group_become_alike(framework, objective, text):
    files = {"similarity": text / "pairs.txt", "analogies": text / "questions.txt"}
    measured = rows(text, framework, "class_hsm", objective=objective, document=20, window=3, epochs=12, **files)
    # With the group known, ten words are left of forty.
    assert 9.0 < measured["perplexity"].value < 20.0
    assert len(measured["perplexity"].detail["curve"]) == 12
    if objective == "pv_dbow":
        assert "similarity_correlation" not in measured
    else:
        assert measured["similarity_correlation"].value > 0.8
        assert measured["analogy_accuracy"].detail["used"] == 1


def test_glove_learns_the_groups(text):
    measured = rows(text, "numpy", "glove", window=3, epochs=30, similarity=text / "pairs.txt")
    curve = [point["train_loss"] for point in measured["glove_loss"].detail["curve"]]
    assert curve[-1] < 0.5 * curve[0]
    assert measured["similarity_correlation"].value > 0.8


def test_a_file_that_is_not_there_is_refused(text):
    with pytest.raises(ValueError, match="no such file"):
        rows(text, "numpy", "full_softmax", analogies=text / "nothing.txt")


@pytest.mark.parametrize("objective", ["cbow", "pv_dbow"])
def test_text_that_fills_no_batch_is_refused(text, objective):
    (text / "train.txt").write_text("aa ae ai ao\n" * 40)
    with pytest.raises(ValueError, match="tokens gives fewer than the 2,560 targets of one batch"):
        rows(text, "numpy", "full_softmax", objective=objective)
