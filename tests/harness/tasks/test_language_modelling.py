"""The language modelling task from text to row, on a small language that a model can learn."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.datasets.text import corpora
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.suites import Suite
from vocabench.harness.tasks import language_modelling
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput
from vocabench.impls.structures import bigrams

FRAMEWORKS = registry.installed_frameworks()
SMALL = {
    "batch": "4",
    "steps": "10",
    "embedding": "16",
    "processes": "1",
    "rounds": "6",
    "budget": "0",
    "decode_rows": "8",
}


@pytest.fixture
def text(tmp_path):
    """Each of 40 words has two words that may follow it."""
    rng = np.random.default_rng(0)
    names = [f"{first}{second}" for first in "abcdefgh" for second in "aeiou"]
    follows = np.stack([rng.permutation(40), rng.permutation(40)])
    here, words = 0, []
    for _ in range(6000):
        here = follows[rng.integers(0, 2), here]
        words.append(names[here])
    for name, piece in (("train", words[:5000]), ("valid", words[5000:5500]), ("test", words[5500:])):
        (tmp_path / f"{name}.txt").write_text(" ".join(piece) + "\n")
    return str(tmp_path)


def result_of(framework, method, text, precision=None, options=None, vocab=None, **settings):
    cells = Suite.load("pydoc").cells(
        Selection(
            frameworks=[framework],
            methods=[method],
            tasks=["language_modelling"],
            dataset=text,
            precision=[precision or ("float64" if framework == "numpy" else "float32")],
            options=options or {},
            vocab=vocab,
            settings=SMALL | settings,
        )
    )
    cell = next(cell for cell in cells if cell.method == method)
    return language_modelling.run(dataclasses.replace(cell, dim=32), lambda progress: None)


def by_quantity(result):
    return {m.quantity: m for m in result.measurements}


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", ["full_softmax", "sohsm", "huffman", "sampled_softmax", "nce"])
def test_a_trained_model_beats_word_counts_and_is_decoded(framework, method, text):
    options = {"interval": "40", "projection": "none", "bias": "True"} if method == "sohsm" else {}
    measured = by_quantity(result_of(framework, method, text, options=options))
    unigram = by_quantity(result_of("numpy", "unigram", text))["perplexity"].value
    perplexity = measured["perplexity"]
    assert 2.0 < perplexity.value < 0.6 * unigram  # two choices a word: no model can get below 2
    assert perplexity.detail["split"] == "test"
    assert [point["step"] for point in perplexity.detail["curve"]] == [124, 248]
    assert measured["topk_seconds"].detail["rows"] == 8
    assert measured["topk1_seconds"].ratio is not None
    assert 0 < measured["expanded_share"].value <= 1
    if method != "sohsm":
        return
    product = measured["cluster_perplexity"].value * measured["in_cluster_perplexity"].value
    assert product == pytest.approx(perplexity.value)
    changes = perplexity.detail["reorganizations"]
    assert [change["step"] for change in changes] == [40, 80, 120, 160, 200, 240]
    assert changes[0]["changed_words"] > 0
    assert {"perplexity_before", "perplexity_after", "changed_frequency"} <= changes[0].keys()
    shown = [word for cluster in perplexity.detail["clusters"] for word in cluster]
    assert len(shown) == len(set(shown))


def turn_back(text):
    """Reverse the second half of each row of the training text, and test on the validation text."""
    folder = Path(text)
    (folder / "test.txt").write_text((folder / "valid.txt").read_text())
    words = (folder / "train.txt").read_text().split()
    rows = (words[start : start + 1250] for start in range(0, 5000, 1250))
    (folder / "train.txt").write_text(" ".join(word for row in rows for word in row[:625] + row[:624:-1]) + "\n")


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_training_ends_after_evaluations_without_a_lower_perplexity(framework, text):
    turn_back(text)
    settings = {"epochs": "3", "evaluations": "4", "learning_rate": "0.3", "decode_rows": "0"}
    scored = by_quantity(
        result_of(framework, "sohsm", text, "float64", {"interval": "40"}, patience="1", checkpoint="best", **settings)
    )["perplexity"]
    steps, perplexities = zip(*((p["step"], p["perplexity"]) for p in scored.detail["curve"]), strict=True)
    assert steps == (31, 62, 93)
    assert scored.detail["scored_step"] == 62
    assert perplexities[0] > perplexities[1] < perplexities[2]
    assert scored.value == pytest.approx(perplexities[1], rel=1e-9)
    assert [change["step"] for change in scored.detail["reorganizations"]] == [40, 80]


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_best_checkpoint_is_scored_where_it_is_asked_for(framework, text):
    """Restored with its clusters, it has the same score on the same words. The reversed text unlearns the language."""
    turn_back(text)
    settings = {"epochs": "1", "evaluations": "2", "learning_rate": "0.3", "decode_rows": "0"}
    last, best = (
        by_quantity(result_of(framework, "sohsm", text, "float64", {"interval": "40"}, checkpoint=which, **settings))
        for which in ("last", "best")
    )
    last, best = last["perplexity"], best["perplexity"]
    (first, lower), (end, higher) = ((point["step"], point["perplexity"]) for point in best.detail["curve"])
    assert lower < 0.9 * higher
    assert (last.detail["scored_step"], best.detail["scored_step"]) == (end, first)
    assert (last.value, best.value) == (pytest.approx(higher, rel=1e-9), pytest.approx(lower, rel=1e-9))
    assert (last.detail["validation_perplexity"], best.detail["validation_perplexity"]) == (higher, lower)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_trained_layer_is_timed_with_the_clusters_it_learned(framework, text, monkeypatch):
    made = []
    from_spec = layers.from_spec
    monkeypatch.setattr(layers, "from_spec", lambda *given: made.append(given[1]) or from_spec(*given))
    settings = {"updates": "50", "time_training": "True", "decode_rows": "0"}
    result = result_of(framework, "sohsm", text, options={"interval": "20"}, **settings)
    measured = by_quantity(result)
    assert [point["step"] for point in measured["perplexity"].detail["curve"]] == [50]
    assert [change["step"] for change in measured["perplexity"].detail["reorganizations"]] == [20, 40]
    timed = measured["trained_layer_seconds"]
    assert timed.ratio is not None
    assert timed.value > 0
    assert timed.detail["tokens"] == 40
    assert result.agreement["verdict"] == "agree"
    learned = [spec.structure["cluster"] for spec in made if spec.method == "sohsm"]
    start = layers.spec("sohsm", counts=made[0].counts, dim=32).structure["cluster"]
    assert all((cluster_V == learned[0]).all() for cluster_V in learned)
    assert (learned[0] != start).any()
    size_C = np.bincount(learned[0])
    assert timed.detail["cluster_sizes"] == [size_C.min(), np.median(size_C), size_C.max()]
    assert 0 < timed.detail["clusters_met"] <= 1


@pytest.mark.lengthy
@pytest.mark.parametrize("method", ["sampled_softmax", "nce"])
def test_words_are_sampled_by_the_pairs_of_the_training_text(method, text):
    """In float64, so that the frameworks' rounding stays small."""
    rows = [
        by_quantity(result_of(f, method, text, "float64", {"sampler": "bigram", "samples": "5"}, decode_rows="0"))
        for f in FRAMEWORKS
    ]
    unigram = by_quantity(result_of("numpy", "unigram", text))["perplexity"].value
    perplexities = [row["perplexity"].value for row in rows]
    assert perplexities == pytest.approx([perplexities[0]] * len(perplexities), rel=1e-6)
    assert 2.0 < perplexities[0] < 0.6 * unigram


@pytest.mark.parametrize(("method", "asks"), [("sohsm", "start"), ("class_hsm", "bins")])
def test_classes_come_from_the_pairs_of_the_training_text(method, asks, text, monkeypatch):
    made = []
    monkeypatch.setattr(bigrams, "vectors", lambda pairs_P3, counts_V: made.append(pairs_P3) or np.eye(len(counts_V)))
    measured = by_quantity(result_of(FRAMEWORKS[0], method, text, options={asks: "bigram"}, decode_rows="0"))
    assert measured["perplexity"].value < by_quantity(result_of("numpy", "unigram", text))["perplexity"].value
    train_T = corpora.load(text, vocab=None).splits["train"]
    assert made[0][:, 2].sum() == len(train_T) - 1
    assert [train_T[0], train_T[1]] in made[0][:, :2].tolist()


@pytest.mark.lengthy
def test_frameworks_end_at_the_same_perplexity(text):
    """The whole path, not only the layer: the same batches in the same order from the same start.

    In float64: a hundred steps of Adagrad grow float32's rounding to a per cent.
    """
    settings = {"epochs": "1", "decode_rows": "0"}
    rows = [by_quantity(result_of(f, "sohsm", text, "float64", {"interval": "40"}, **settings)) for f in FRAMEWORKS]
    perplexities = [row["perplexity"].value for row in rows]
    assert perplexities == pytest.approx([perplexities[0]] * len(perplexities), rel=1e-6)


def test_the_texts_of_tests_go_to_a_cache_of_the_tests():
    assert Path(tempfile.gettempdir()) in cache_folder.path().parents


def test_a_text_that_is_too_short_is_refused(text):
    with pytest.raises(BadInput, match="too short for 500 rows of 10 steps"):
        result_of("numpy", "full_softmax", text, batch="500")


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("method", "options", "first"),
    [
        ("binary_tree", {"tree": "adaptive"}, {"tree": "random"}),
        ("class_hsm", {"bins": "similarity"}, {"bins": "random"}),
    ],
)
def test_structures_made_from_word_vectors_take_them_from_a_model_trained_first(method, options, first, text):
    framework = next(name for name in FRAMEWORKS if name != "numpy")
    unigram = by_quantity(result_of("numpy", "unigram", text))["perplexity"].value
    perplexity = by_quantity(result_of(framework, method, text, options=options, decode_rows="0"))["perplexity"]
    assert 2.0 < perplexity.value < 0.6 * unigram
    assert perplexity.detail["bootstrap"]["options"] == first
    assert perplexity.detail["bootstrap"]["curve"][-1]["step"] == 248


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_words_outside_of_the_vocabulary_are_scored_by_their_spelling(framework, text):
    settings = {"unseen_vocab": "42", "decode_rows": "0", "updates": "60"}
    result = result_of(framework, "cnn_softmax", text, precision="float64", vocab=[20], **settings)
    measured = by_quantity(result)
    unseen = measured["unseen_perplexity"]
    narrow, wide = corpora.load(text, vocab=20), corpora.load(text, vocab=42)
    further = {number for number, word in enumerate(wide.words) if word not in narrow.words}
    assert unseen.detail["words"] == len(further) == 22
    rows_BT = wide.splits["test"][: len(wide.splits["test"]) // 16 * 16].reshape(16, -1)
    assert unseen.detail["tokens"] == sum(int(word) in further for word in rows_BT[:, 1:].ravel())
    # All further words at once have little more than the probability of <unk>.
    assert unseen.detail["even_perplexity"] / 22 < unseen.value < 1000
    assert unseen.detail["split"] == "test"
    assert measured["parameters"].value == sum(
        np.prod(shape)
        for shape in layers.spec("cnn_softmax", counts=narrow.counts_V, dim=32, words=narrow.words)
        .parameter_shapes()
        .values()
    )


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("full_softmax", {"unseen_vocab": "42"}, "with full_softmax: allowed: 0, or a layer that spells words"),
        ("cnn_softmax", {"unseen_vocab": "20"}, "with 20 words: allowed: more than those of the model"),
    ],
)
def test_what_cannot_score_unseen_words_is_refused(method, settings, message, text):
    with pytest.raises(BadInput, match=message):
        result_of("numpy", method, text, vocab=[20], **settings)
