"""Sequences: against every sequence there is, and the same from every framework."""

import itertools

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.models.decoding import beam_search, greedy
from vocabench.impls.models.language_model import LanguageModelConfig

# One of each way to decode: all words at once, clusters, classes, a tree, a head with tails.
METHODS = ("full_softmax", "sohsm", "class_hsm", "huffman", "adaptive_softmax")
PAIRS = [(f, m) for f in registry.installed_frameworks() for m in METHODS]
PROMPTS_BT = np.array([[0, 3], [2, 1], [4, 4]], dtype=np.int32)


def model_of(framework, method, vocab=23, scale=6.0):
    spec = layers.spec(method, counts=zipf_counts(vocab), dim=8, dtype="float64")
    model = layers.create_network(framework, spec, LanguageModelConfig(embedding=6, hidden=8, seed=3))
    model.load({name: scale * value for name, value in model.initial_parameters().items()})
    return model


def log_prob(model, prompt_T, words):
    """Return the log-probability of the words after the prompt, step by step."""
    values_1K, ids_1K = model.prime(prompt_T[None], model.spec.vocab)
    total = 0.0
    for word in words:
        total += values_1K[0, ids_1K[0] == word].item()
        values_1K, ids_1K = model.extend(np.array([0]), np.array([word]), model.spec.vocab)
    return total


def test_a_search_as_wide_as_the_vocabulary_finds_the_best_of_all_pairs():
    model = model_of("numpy", "full_softmax", vocab=5)
    scores_BW, words_BWL = beam_search(model, PROMPTS_BT, 2, width=5)
    for row, prompt_T in enumerate(PROMPTS_BT):
        every = {pair: log_prob(model, prompt_T, pair) for pair in itertools.product(range(5), repeat=2)}
        best = sorted(every, key=lambda pair: -every[pair])[:5]
        assert [tuple(words) for words in words_BWL[row].tolist()] == best
        np.testing.assert_allclose(scores_BW[row], [every[pair] for pair in best], atol=1e-12)


@pytest.mark.many_cells
@pytest.mark.parametrize(("framework", "method"), PAIRS)
def test_the_same_beams_in_every_framework(framework, method):
    oracle = beam_search(model_of("numpy", method), PROMPTS_BT, 5, width=4)
    scores_BW, words_BWL = beam_search(model_of(framework, method), PROMPTS_BT, 5, width=4)
    assert words_BWL.tolist() == oracle[1].tolist()
    np.testing.assert_allclose(scores_BW, oracle[0], atol=1e-9)


def test_greedy_takes_the_likeliest_next_word_each_time():
    model = model_of("numpy", "sohsm")
    scores_B, words_BL = greedy(model, PROMPTS_BT, 6)
    for row, prompt_T in enumerate(PROMPTS_BT):
        _, ids = model.prime(prompt_T[None], 1)
        for word in words_BL[row]:
            assert word == ids[0, 0]
            _, ids = model.extend(np.array([0]), np.array([word]), 1)
        assert scores_B[row] == pytest.approx(log_prob(model, prompt_T, words_BL[row]))


def test_an_ended_sequence_stays_as_it_is():
    model = model_of("numpy", "huffman")
    end = int(greedy(model, PROMPTS_BT[:1], 3)[1][0, 1])
    scores_BW, words_BWL = beam_search(model, PROMPTS_BT, 8, width=6, end=end)
    assert (words_BWL == end).any()
    for prompt_T, scores_W, words_WL in zip(PROMPTS_BT, scores_BW, words_BWL, strict=True):
        assert (np.diff(scores_W) <= 1e-12).all()
        for score, words in zip(scores_W, words_WL.tolist(), strict=True):
            spoken = words[: words.index(end) + 1] if end in words else words
            assert set(words[len(spoken) :]) <= {end}
            assert score == pytest.approx(log_prob(model, prompt_T, spoken))


def test_a_word_that_is_never_taken():
    """Without the end, every sequence is as long as asked for, and the best that there are without it."""
    model = model_of("numpy", "full_softmax", vocab=5)
    end = int(greedy(model, PROMPTS_BT[:1], 1)[1][0, 0])
    scores_BW, words_BWL = beam_search(model, PROMPTS_BT, 2, width=4, end=end, without=(end,))
    assert (words_BWL != end).all()
    others = [word for word in range(5) if word != end]
    for row, prompt_T in enumerate(PROMPTS_BT):
        every = {pair: log_prob(model, prompt_T, pair) for pair in itertools.product(others, repeat=2)}
        best = sorted(every, key=lambda pair: -every[pair])[:4]
        assert [tuple(words) for words in words_BWL[row].tolist()] == best
        np.testing.assert_allclose(scores_BW[row], [every[pair] for pair in best], atol=1e-12)


@pytest.mark.parametrize(
    ("prompts", "length", "width", "message"),
    [
        (np.zeros((2, 0), int), 3, 2, r"prompts has shape \(2, 0\)"),
        (np.zeros(3, int), 3, 2, "prompts has shape"),
        (np.zeros((2, 1)), 3, 2, "word ids"),
        (PROMPTS_BT, 0, 2, "length=0: allowed: a whole number from 1"),
        (PROMPTS_BT, 3, 0, "width=0"),
    ],
)
def test_bad_input(prompts, length, width, message):
    with pytest.raises(BadInput, match=message):
        beam_search(model_of("numpy", "full_softmax"), prompts, length, width=width)
