"""Word vectors trained example by example: pairs, sub-sampling, and the same vectors in every framework."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from vocabench.harness import registry
from vocabench.harness.datasets.text.corpora import Corpus
from vocabench.harness.run.cells import Cell
from vocabench.harness.tasks import word_vectors
from vocabench.harness.tasks.shared import bags
from vocabench.harness.word_vectors import scores, vector_files
from vocabench.harness.word_vectors.training import Training
from vocabench.impls.errors import BadInput, Unsupported

FRAMEWORKS = registry.installed_frameworks()
NEGATIVE_SAMPLING = {
    "sharing": "token",
    "samples": 5,
    "sampler": "powered_unigram",
    "bias": False,
    "initial": "zero",
}


@pytest.fixture
def corpus():
    """40 words in four groups; a word is followed by words of its own group."""
    rng = np.random.default_rng(0)
    ids_T = np.concatenate([10 * rng.integers(4) + rng.integers(0, 10, 20) for _ in range(500)]).astype(np.int32)
    words = [f"{first}{second}" for first in "abcdefgh" for second in "aeiou"]
    counts_V = np.bincount(ids_T[:9000], minlength=40)
    return Corpus("groups", "0" * 64, "none", {}, words, counts_V, {"train": ids_T[:9000], "valid": ids_T[9000:]})


def cell(framework, method="negative_sampling", **settings):
    defaults = {name: setting.default for name, setting in word_vectors.SETTINGS.items()}
    options = NEGATIVE_SAMPLING if method == "negative_sampling" else {}
    return Cell(
        "word_vectors",
        "word_vectors",
        framework,
        method,
        40,
        16,
        256,
        precision="float64" if framework == "numpy" else "float32",
        dataset="groups",
        dataset_sha256="0" * 64,
        options=options,
        settings={**defaults, "updates": "example", "learning_rate": 0.1, "window": 3, "scored": 200, **settings},
    )


def trained(corpus, framework, method="negative_sampling", **settings):
    training = Training(cell(framework, method, **settings), corpus)
    try:
        training.run(lambda text: None)
    except Unsupported as error:
        pytest.skip(str(error))  # no compiler
    return training


def test_pairs_by_target_are_those_of_skip_gram_the_other_way_round():
    ids_T, at_N = np.random.default_rng(0).integers(0, 9, 50), np.arange(50)
    inputs_N1, targets_N = bags.skip_gram(ids_T, at_N, np.full(50, 4), 4)
    bags_P1, targets_G, group_P = bags.skip_gram_by_target(ids_T, at_N, np.full(50, 4), 4)
    assert Counter(zip(targets_G[group_P].tolist(), bags_P1[:, 0].tolist(), strict=True)) == Counter(
        zip(inputs_N1[:, 0].tolist(), targets_N.tolist(), strict=True)
    )
    assert (np.diff(group_P) >= 0).all()


def test_frequent_words_are_dropped_with_the_probability_of_the_paper():
    counts_V = np.array([90_000, 9_000, 1_000])
    ids_T = np.repeat(np.arange(3), counts_V)
    kept_V = np.bincount(bags.keep_rare(ids_T, counts_V, 0.04, np.random.default_rng(0)), minlength=3)
    np.testing.assert_allclose(kept_V / counts_V, [np.sqrt(0.04 / 0.9), np.sqrt(0.04 / 0.09), 1.0], rtol=0.03)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("objective", ["cbow", "skip_gram"])
@pytest.mark.parametrize("method", ["negative_sampling", "huffman"])
def test_words_of_a_group_become_alike(corpus, framework, objective, method):
    training = trained(corpus, framework, method, objective=objective, epochs=1 if framework == "numpy" else 8)
    unit_VD = training.vectors()[0] / np.linalg.norm(training.vectors()[0], axis=1, keepdims=True)
    cosine_VV = unit_VD @ unit_VD.T
    own_VV = np.arange(40)[:, None] // 10 == np.arange(40) // 10
    assert cosine_VV[own_VV].mean() > cosine_VV[~own_VV].mean() + (0.05 if framework == "numpy" else 0.3)
    losses = [point["train_loss"] for point in training.curve]
    assert np.isfinite(losses).all()
    assert "perplexity" in training.curve[-1]
    measured = {measurement.quantity: measurement for measurement in training.measurements()}
    assert measured["words_per_second"].value == pytest.approx(
        9000 * len(losses) / measured["train_seconds"].value, rel=1e-6
    )


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "numpy"])
def test_every_framework_learns_the_vectors_of_the_definition(corpus, framework):
    ours, definition = (trained(corpus, name, objective="cbow", subsample=0.05) for name in (framework, "numpy"))
    for mine, exact in zip(ours.vectors(), definition.vectors(), strict=True):
        assert mine is not None
        assert exact is not None
        np.testing.assert_allclose(mine, exact, atol=1e-4)
    assert ours.curve[0]["train_loss"] == pytest.approx(definition.curve[0]["train_loss"], rel=1e-5)


def test_a_layer_without_single_examples_is_refused_before_training(corpus):
    with pytest.raises(BadInput, match="steps for single examples with full_softmax: allowed: trees"):
        Training(cell("numpy", "full_softmax"), corpus)


def test_vectors_are_written_and_scored_again(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors.text, "data_of", lambda cell, progress: (corpus, {}))
    name = str(tmp_path / "{method}-{framework}-{seed}.bin")
    first = cell("numpy", "huffman", vectors=name, objective="cbow")
    measured = word_vectors.run(first, lambda text: None).measurements
    path = tmp_path / "huffman-numpy-0.bin"
    assert vector_files.read(path).words == tuple(corpus.words)
    with pytest.raises(BadInput, match="it exists"):
        word_vectors.run(first, lambda text: None)
    monkeypatch.setattr(scores, "of_vectors", lambda cell, corpus, vectors: pytest.approx(vectors))
    again = word_vectors._by_file(cell("numpy", "given", given=f"{path}@"), corpus, lambda text: None)
    np.testing.assert_array_equal(again.input_VD, vector_files.read(path).vectors_VD)
    assert again.measurements[0].value == 1.0
    assert measured


def test_what_has_no_context_vectors_cannot_combine_them(corpus, monkeypatch):
    monkeypatch.setattr(word_vectors.text, "data_of", lambda cell, progress: (corpus, {}))
    with pytest.raises(BadInput, match="combine=sum with huffman: allowed: input"):
        word_vectors.run(cell("numpy", "huffman", objective="cbow", combine="sum"), lambda text: None)


def test_words_without_a_vector_are_unknown_and_not_wrong(corpus, tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text("aa ae ai ao\nba be bi bo\n")
    vectors_VD = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    vectors_VD[5] = 0.0  # "ba"
    (measured,) = scores.of_vectors(cell("numpy", "huffman", analogies=f"{path}@"), corpus, vectors_VD)
    assert (measured.detail["used"], measured.detail["skipped"]) == (1, 1)


def test_built_in_questions_ask_about_words_of_the_text(corpus):
    words = [*corpus.words[:36], "value", "values", "return", "returns"]
    ours = dataclasses.replace(corpus, words=words, counts_V=np.full(40, 100))
    asked = {section.name: section.questions for section in scores.built_in(ours, dict.fromkeys(words, 0))}
    assert asked["ending-s"] == (("return", "returns", "value", "values"), ("value", "values", "return", "returns"))
