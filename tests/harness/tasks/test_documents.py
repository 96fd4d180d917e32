"""Documents: pairs, baselines, and the task from text to row."""

import json
import math

import numpy as np
import pytest

from tests.rows import by_quantity, row_of
from vocabench.harness import registry
from vocabench.harness.datasets.documents.encoded_documents import Labelled
from vocabench.harness.datasets.pairs.encoded_pairs import Ragged
from vocabench.harness.report import table
from vocabench.harness.report.rows import flatten
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.suites import Suite
from vocabench.harness.tasks import documents
from vocabench.harness.tasks.shared import document_baselines, document_pairs
from vocabench.harness.word_vectors import sppmi
from vocabench.impls.errors import BadInput, Unsupported

FRAMEWORKS = registry.installed_frameworks()


def labelled(*texts):
    starts_P = np.cumsum([0, *map(len, texts)])
    return Labelled(Ragged(np.concatenate(texts).astype(np.int32), starts_P), np.zeros(len(texts), dtype=np.int64))


def test_each_word_is_the_target_of_its_document_once():
    text = labelled([4, 5, 6], [7], [4, 8, 9, 9])
    batches = list(document_pairs.of_documents(text, 4, np.random.default_rng(0), first=10))
    assert [bags_N1.shape for bags_N1, _ in batches] == [(4, 1), (4, 1)]
    pairs = [(int(d), int(w)) for bags_N1, targets_N in batches for d, w in zip(bags_N1[:, 0], targets_N, strict=True)]
    assert sorted(pairs) == [(10, 4), (10, 5), (10, 6), (11, 7), (12, 4), (12, 8), (12, 9), (12, 9)]
    assert len(list(document_pairs.of_documents(text, 3, np.random.default_rng(0)))) == 2


def test_neighbours_are_near_and_in_the_same_document():
    """Each neighbour is as frequent as with word2vec's windows of random size, given that there is one."""
    text = labelled([0, 1, 2, 3], [4], [5, 6])
    bags_N1, targets_N = next(document_pairs.of_neighbours(text, 2, 60_000, np.random.default_rng(0)))
    counts = np.zeros((7, 7))
    np.add.at(counts, (bags_N1[:, 0], targets_N), 1)
    weights = np.zeros((7, 7))
    for first, last in ((0, 4), (5, 7)):
        for i in range(first, last):
            for j in range(max(first, i - 2), min(last, i + 3)):
                weights[i, j] = 3 - abs(i - j) if i != j else 0
    expected = np.divide(weights, weights.sum(axis=1, keepdims=True), out=weights, where=weights > 0) / 6
    assert not counts[expected == 0].any()
    np.testing.assert_allclose(counts / counts.sum(), expected, atol=0.006)


def test_documents_of_one_word_have_no_neighbours():
    assert next(document_pairs.of_neighbours(labelled([1], [2]), 2, 5, np.random.default_rng(0)), None) is None


@pytest.fixture
def path(tmp_path):
    """Documents of four labels, each with words of its own beside shared ones; another label has one test document."""
    rng = np.random.default_rng(0)
    names = [f"{first}{second}" for first in "abcdefgh" for second in "aeiou"]
    shared = ["the", "of", "and", "to"]
    for split, count in (("train", 160), ("test", 40)):
        with (tmp_path / f"{split}.jsonl").open("w") as file:
            for number in range(count):
                label = number % 4
                own = [names[10 * label + n] for n in rng.integers(0, 10, 12)]
                words = rng.permutation([*own, *rng.choice(shared, 12)])
                file.write(json.dumps({"text": " ".join(words), "label": label}) + "\n")
            file.write(json.dumps({"text": "the ab aa", "label": "alone"}) + "\n")
    return tmp_path


def cell_of(path, framework, method, **settings):
    sweep = {"task": "documents", "dim": 16, "tokens": 256, "settings": settings}
    suite = Suite("own", "", 60.0, (sweep,))
    selection = Selection(
        frameworks=[framework],
        methods=None if method in document_baselines.METHODS else [method],
        dataset=str(path),
        precision=["float64" if framework == "numpy" else "float32"],
    )
    return next(cell for cell in suite.cells(selection) if cell.method == method)


def measured(path, framework, method, **settings):
    result = documents.run(cell_of(path, framework, method, **settings), lambda text: None)
    return {m.quantity: m for m in result.measurements}


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("objective", ["pv_dbow", "pv_dbow_joint"])
def test_documents_of_a_label_become_alike(framework, objective, path):
    found = measured(path, framework, "full_softmax", objective=objective, epochs=20, inference_epochs=20)
    score = found["triplet_accuracy"]
    assert score.value > 0.9
    detail = score.detail
    assert (detail["triplets"], detail["documents"], detail["labels"], detail["ignored_labels"]) == (10_000, 40, 4, 1)
    assert len(detail["curve"]) == len(detail["inference"]["curve"]) == 20
    for curve in (detail["curve"], detail["inference"]["curve"]):
        assert curve[-1]["train_loss"] < curve[0]["train_loss"]
    assert ("word_loss" in detail["curve"][0]) == (objective == "pv_dbow_joint")


@pytest.mark.parametrize("objective", ["pv_dbow", "pv_dbow_joint"])
def test_frameworks_infer_the_same_vectors(objective, path):
    values = [
        measured(path, framework, "negative_sampling", objective=objective, epochs=5)["triplet_accuracy"]
        for framework in FRAMEWORKS
    ]
    losses = [value.detail["inference"]["curve"][-1]["train_loss"] for value in values]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-4)
    assert np.ptp([value.value for value in values]) < 0.005


@pytest.mark.parametrize("method", ["average", "idf_average"])
def test_averages_of_word_vectors_find_the_labels(method, path):
    assert measured(path, "numpy", method)["triplet_accuracy"].value > 0.9


def test_averages_are_those_of_the_training_texts_word_vectors(path):
    cell = cell_of(path, "numpy", "average", shift=1.0, window=10)
    data = documents.load(str(path), None, cell.settings, lambda text: None)
    train, test = data.splits["train"], data.splits["test"]
    word_VD = sppmi.vectors(
        train.texts.ids_T, len(data.words), 8, window=10, negatives=1, power=0.5, seed=3, document_T=train.document_T
    )
    texts = {split: [part.texts.joined(np.array([n])) for n in range(len(part))] for split, part in data.splits.items()}
    assert len(texts["test"]) == len(test) == 41
    containing = [sum(word in text for text in texts["train"]) for word in range(len(data.words))]
    inverse = [math.log(len(train) / count) if count else 0.0 for count in containing]
    for method, weights in (("average", np.ones(len(data.words))), ("idf_average", np.array(inverse))):
        vectors_NE = document_baselines.vectors(method, data, dim=8, settings=cell.settings, seed=3)
        expected = np.array([np.mean([weights[w] * word_VD[w] for w in text], axis=0) for text in texts["test"]])
        # Products, because columns whose singular values are almost equal may be rotated.
        np.testing.assert_allclose(vectors_NE @ vectors_NE.T, expected @ expected.T, atol=1e-9)


def test_a_row_has_a_line_in_a_table(path):
    row = row_of(documents.TASK, cell_of(path, "numpy", "average"))
    ((title, lines),) = table.tables(flatten([row]))
    assert title == f"Documents by pv_dbow on {path}, {row.cell.vocab} words"
    assert lines["triplets"].tolist() == [f"{100 * by_quantity(row)['triplet_accuracy'].value:.1f} %"]


def test_topics_find_the_labels(path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    assert measured(path, "numpy", "lda", topics=5)["triplet_accuracy"].value > 0.8


def test_without_scikit_learn_lda_is_skipped_in_one_line(path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"lda needs scikit-learn, not installed here: allowed: '.*install") as raised:
        measured(path, "numpy", "lda")
    assert "\n" not in str(raised.value)


def test_documents_without_two_labels_are_refused(path):
    lines = (path / "test.jsonl").read_text().splitlines()
    (path / "test.jsonl").write_text("\n".join(line for line in lines if '"label": 0' in line or "alone" in line))
    with pytest.raises(BadInput, match="1 labels with two documents or more: allowed: from 2"):
        cell_of(path, "numpy", "full_softmax")


def test_a_loss_that_is_not_finite_is_an_error(path):
    with pytest.raises(FloatingPointError, match="training loss is"), np.errstate(all="ignore"):
        measured(path, "numpy", "full_softmax", optimizer="sgd", learning_rate=1e6, epochs=3)
