"""Words as characters, the option that gives them, and what the layer makes of what words share."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.tasks.shared.text import with_words
from vocabench.impls.errors import BadInput
from vocabench.impls.spec import check_options
from vocabench.impls.structures import windows
from vocabench.impls.structures.spelling import BEGIN, END, LONGEST, PADDING, spell

FRAMEWORKS = [f for f in registry.installed_frameworks() if f != "numpy"]
WORDS = ["the", "a", "cats", "cat", "dogs", "dog", "naïve", "x" * 30, "incomprehensibilities"]


def make(framework="numpy", words=WORDS, dim=6, **options):
    counts_V = zipf_counts(len(words))
    return layers.create(framework, "cnn_softmax", counts=counts_V, dim=dim, dtype="float64", words=words, **options)


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=20))
def test_a_row_spells_its_word_between_marks(words):
    characters_VL, alphabet = spell(words)
    own = sorted(set("".join(word[:LONGEST] for word in words)))
    assert alphabet == 2 + len(own)
    for row_L, word in zip(characters_VL, words, strict=True):
        row_L = row_L[row_L != PADDING]
        assert (row_L[0], row_L[-1]) == (BEGIN, END)
        assert "".join(own[number - 3] for number in row_L[1:-1]) == word[:LONGEST]
    assert (characters_VL != PADDING).any(axis=0).all()


@given(st.lists(st.text("abc", min_size=1, max_size=8), min_size=1, max_size=20), st.integers(1, 8))
def test_words_are_made_of_windows_in_blocks_of_about_the_same_length(words, block):
    windows_UK, ids_VT = windows.windows(spell(words)[0])
    assert len({tuple(window) for window in windows_UK}) == len(windows_UK)
    characters = dict(enumerate(sorted(set("".join(words))), start=END + 1)) | {PADDING: "", BEGIN: "<", END: ">"}
    text_U = ["".join(characters[number] for number in window) for window in windows_UK]
    expected = [[f"<{word}>"[t - 1 : t + 3] for t in range(1, len(word) + 1)] for word in words]
    assert [[text_U[number] for number in row_T if number >= 0] for row_T in ids_VT] == expected
    with mock.patch.object(windows, "BLOCK", block):
        ids_BTW, places_B, rank_V = windows.blocks(ids_VT)
    assert ids_BTW.shape[2] <= block
    assert (np.diff(places_B) <= 0).all()
    for word, rank in enumerate(rank_V):
        of_block, own = divmod(int(rank), ids_BTW.shape[2])
        ids_T, places = ids_BTW[of_block, :, own], len(words[word])
        assert places <= places_B[of_block]
        assert ids_T[:places].tolist() == ids_VT[word, :places].tolist()
        assert (ids_T[places:] == ids_T[0]).all()


def test_words_without_a_spelling_are_spelled_by_the_digits_of_their_ids():
    digits = layers.spec("cnn_softmax", counts=zipf_counts(124), dim=3).structure
    assert digits["alphabet"] == 12
    assert digits["characters"][123].tolist() == [BEGIN, 4, 5, 6, END]
    assert digits["characters"][7].tolist() == [BEGIN, 10, END, PADDING, PADDING]


@pytest.mark.parametrize("framework", ["numpy", *FRAMEWORKS])
def test_cut_words_that_begin_alike_differ_by_their_corrections_alone(framework):
    alike = ["z" * LONGEST + "one", "z" * LONGEST + "another", "other"]
    hidden_ND = np.random.default_rng(0).standard_normal((4, 6))
    log_probs_NV = make(framework, alike, correction=0).log_probs(hidden_ND)
    np.testing.assert_allclose(log_probs_NV[:, 0], log_probs_NV[:, 1], rtol=1e-12)
    log_probs_NV = make(framework, alike).log_probs(hidden_ND)
    assert np.abs(log_probs_NV[:, 0] - log_probs_NV[:, 1]).min() > 1e-4


@pytest.mark.parametrize("framework", ["numpy", *FRAMEWORKS])
def test_words_that_share_characters_share_gradients(framework):
    """What makes "cats" likelier makes "cat" likelier than "dog", though neither was seen."""
    layer = make(framework, correction=0, dim=12)
    hidden_ND = np.tanh(np.random.default_rng(1).standard_normal((1, 12)))
    _, _, grads = layer.loss_and_grads(hidden_ND, np.array([WORDS.index("cats")]))
    before_V = layer.log_probs(hidden_ND)[0]
    # Not the bias, which is each word's own.
    layer.load({n: v if n == "bias" else v - 0.1 * grads[n] for n, v in layer.parameters().items()})
    moved = dict(zip(WORDS, layer.log_probs(hidden_ND)[0] - before_V, strict=True))
    assert moved["cats"] > moved["cat"] > moved["dog"]


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    "options", [{}, {"correction": 2, "filters": 1, "char_dim": 3}, {"correction": 0, "filters": 5, "char_dim": 3}]
)
def test_agrees_with_the_definition_over_words(framework, options, monkeypatch):
    """In several blocks too, the last of them filled up; features wider than hidden vectors, and narrower."""
    rng = np.random.default_rng(2)
    words = ["".join(rng.choice(list("abcdeéß"), size=length)) for length in rng.integers(1, 24, 50)]
    monkeypatch.setattr(windows, "BLOCK", 16)
    layer = make(framework, words, dim=10, **options)
    params = {name: rng.standard_normal(value.shape) for name, value in layer.parameters().items()}
    layer.load(params)
    inputs = batch(layer.spec.counts, tokens=40, dim=10, seed=3)
    assert [str(c) for c in agreement.check_layer(layer, inputs, k=5) if not c.agrees] == []


@pytest.mark.skipif("jax" not in FRAMEWORKS, reason="needs JAX")
def test_more_scores_than_indices_of_32_bits_give_the_same_in_jax(monkeypatch):
    jax_softmax = pytest.importorskip("vocabench.impls.on_jax.methods.cnn_softmax")
    inputs = batch(zipf_counts(len(WORDS)), tokens=7, dim=6, seed=4)
    loss, _, grads = make("jax").loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    monkeypatch.setattr(jax_softmax, "_FLAT", 0)
    other_loss, _, other_grads = make("jax").loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    assert loss == other_loss
    for name, grad in grads.items():
        np.testing.assert_allclose(other_grads[name], grad, rtol=1e-12, atol=1e-15)


def test_a_correction_is_no_wider_than_the_hidden_vector():
    shapes = {R: make(correction=R).spec.parameter_shapes() for R in (0, 4, 4096)}
    assert not any("correction" in name for name in shapes[0])
    assert shapes[4]["correction_weight"] == (9, 4)
    assert shapes[4096]["correction_projection"] == (6, 6)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_words_may_come_from_a_file_which_must_not_change(ending, tmp_path):
    path = tmp_path / "words.txt"
    line = "\r\n" if ending == "\r\n" else "\n"
    path.write_bytes((line.join(WORDS) + ending).encode())
    ours = make(words=WORDS).spec
    theirs = layers.spec("cnn_softmax", counts=zipf_counts(len(WORDS)), dim=6, words=str(path))
    assert np.array_equal(ours.structure["characters"], theirs.structure["characters"])
    assert repr(ours.options["words"]) == "9 words"
    named = theirs.options["words"]
    path.write_text("other\n" * 9)
    with pytest.raises(BadInput, match="sha256 begins"):
        layers.spec("cnn_softmax", counts=zipf_counts(len(WORDS)), dim=6, words=named)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b"], "option words has 2 words: allowed: 3, one for each id"),
        (["a", "", "c"], "option words: word 2 is empty"),
        (["a", 2, "c"], "option words is not a sequence of texts"),
        (3, "option words is not a sequence of texts"),
        ("no/such/words.txt", "no such file: allowed: the path of a text file with one word per line"),
        (b"a\nb\nc\nd\n", "option words has 4 words: allowed: 3"),
        (b"a\n\nc\n", r"words\.txt line 2 is empty"),
        (b"", r"words\.txt line 1 is empty"),
        (b"a\nb\nc\xff\n", r"words\.txt line 3 is not UTF-8"),
    ],
)
def test_bad_words_are_refused(words, message, tmp_path):
    if isinstance(words, bytes):
        path = tmp_path / "words.txt"
        path.write_bytes(words)
        words = str(path)
    with pytest.raises(BadInput, match=message) as refused:
        layers.spec("cnn_softmax", counts=zipf_counts(3), dim=4, words=words)
    assert "\n" not in str(refused.value)


def test_a_layer_over_a_text_reads_its_words_unless_it_has_some():
    definition = registry.definition("cnn_softmax")
    corpus, own = ["seven", "sailors", "saw"], ("a", "b", "c")
    for own_options, words in (({}, corpus), ({"words": own}, own)):
        options = with_words(check_options(definition, own_options), corpus)
        spec = layers.spec("cnn_softmax", counts=[3, 2, 1], dim=4, **options)
        assert np.array_equal(spec.structure["characters"], spell(words)[0])
    assert "words" not in with_words(check_options(registry.definition("huffman"), {}), corpus)
