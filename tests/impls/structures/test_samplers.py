"""Samplers: tables that hold their probabilities, words drawn as often as expected, TensorFlow's expected counts."""

import importlib.util

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.structures import bigrams, samplers
from vocabench.impls.structures.samplers import AliasTable, BigramSampler, Sampler

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed"
)

weights = st.lists(
    st.sampled_from([0.0, 1.0, 1e-300, 1e300]) | st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=60
).filter(lambda values: 0 < sum(values) < 1e301)


@given(weights)
@example([0.0, 0.0, 1 / 3, 1.0])  # a word that fills exactly its own column, before one that fills the others
@settings(max_examples=300, deadline=None)
def test_an_alias_table_holds_its_probabilities(values):
    weight_V = np.array(values)
    table = AliasTable.of(weight_V)
    np.testing.assert_allclose(table.probabilities(), weight_V / weight_V.sum(), rtol=0, atol=1e-12)
    assert ((table.own_V >= 0) & (table.own_V <= 1)).all()
    assert ((table.alias_V >= 0) & (table.alias_V < len(values))).all()


@pytest.mark.parametrize("name", samplers.NAMES)
@pytest.mark.parametrize("vocab", [2, 3, 1009, 200_000])
def test_an_alias_table_of_words(name, vocab):
    probability_V = samplers.probabilities(name, zipf_counts(vocab))
    assert probability_V.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(AliasTable.of(probability_V).probabilities(), probability_V, rtol=0, atol=1e-12)


def test_words_all_alike_and_one_word_alone():
    # A third is no binary fraction: rounding may leave no word with a whole column.
    for vocab in (1, 3, 7, 49):
        assert AliasTable.of(np.full(vocab, 1 / vocab)).probabilities() == pytest.approx(np.full(vocab, 1 / vocab))
    assert (AliasTable.of(np.array([0.0, 2.0, 0.0])).draw(np.random.default_rng(0), 100) == 1).all()


@pytest.mark.parametrize("name", samplers.NAMES)
def test_words_are_drawn_as_often_as_expected(name):
    sampler = Sampler.of(samplers.probabilities(name, zipf_counts(50)))
    drawn = sampler.draw(np.random.default_rng(0), 100_000)
    expected_V = np.exp(sampler.log_expected_counts(np.arange(50), 100_000))
    assert stats.chisquare(np.bincount(drawn, minlength=50), expected_V).pvalue > 1e-3


def test_probabilities_are_by_rank_by_count_and_by_its_power():
    counts_V = np.array([3, 0, 81, 3, 16])
    by_rank = np.log((np.arange(5) + 2) / (np.arange(5) + 1)) / np.log(6)
    np.testing.assert_allclose(samplers.probabilities("log_uniform", counts_V)[[2, 4, 0, 3, 1]], by_rank)
    np.testing.assert_allclose(samplers.probabilities("unigram", counts_V), np.array([3, 1, 81, 3, 16]) / 104)
    powered = np.array([3**0.75, 1, 27, 3**0.75, 8])
    np.testing.assert_allclose(samplers.probabilities("powered_unigram", counts_V), powered / powered.sum())
    with pytest.raises(BadInput, match="did you mean 'unigram'"):
        samplers.probabilities("unigrams", counts_V)


@pytest.mark.parametrize("samples", [1, 2, 5, 6])
def test_distinct_words_come_as_from_drawing_one_by_one(samples):
    """Against numpy's own draws without replacement, by the set of words: both ways of the sampler are taken."""
    probability_V = np.array([0.6, 0.25, 0.1, 0.03, 0.015, 0.005])
    sampler = Sampler.of(probability_V, unique=True)
    rng = np.random.default_rng(1)
    sets: list[dict[tuple[int, ...], int]] = [{}, {}]
    for counted, draw in (
        (sets[0], lambda: sampler.draw(rng, samples)),
        (sets[1], lambda: rng.choice(6, samples, replace=False, p=probability_V)),
    ):
        for _ in range(4000):
            words = tuple(sorted(draw().tolist()))
            assert len(set(words)) == samples
            counted[words] = counted.get(words, 0) + 1
    common = [key for key in sets[1] if sets[0].get(key, 0) + sets[1][key] > 20]
    table = [[counted.get(key, 0) for key in common] for counted in sets]
    assert len(common) == 1 or stats.chi2_contingency(table).pvalue > 1e-3


def test_as_many_distinct_words_are_expected_as_are_drawn():
    sampler = Sampler.of(samplers.probabilities("unigram", zipf_counts(300)), unique=True)
    for samples in (1, 2, 64, 299, 300):
        expected_V = np.exp(sampler.log_expected_counts(np.arange(300), samples))
        assert expected_V.sum() == pytest.approx(samples, rel=1e-9)
        assert len(set(sampler.draw(np.random.default_rng(samples), samples).tolist())) == samples
    for call in (sampler.tries, lambda samples: sampler.draw(np.random.default_rng(0), samples)):
        with pytest.raises(BadInput, match="samples=301 with unique=True: allowed: at most 300"):
            call(301)


def test_a_word_that_is_nearly_certain_keeps_its_logarithms_finite():
    for unique in (False, True):
        sampler = Sampler.of(samplers.probabilities("unigram", np.array([2**61, 1])), unique=unique)
        assert np.isfinite(sampler.log_expected_counts([0, 1], 1)).all()
        assert len(sampler.draw(np.random.default_rng(0), 2)) == 2


@needs_tensorflow
@pytest.mark.parametrize("vocab", [2, 100, 5000])
def test_log_uniform_is_tensorflows(vocab):
    import tensorflow as tf

    sampler = Sampler.of(samplers.probabilities("log_uniform", zipf_counts(vocab)))
    words_V = np.arange(vocab)
    _, expected_V1, _ = tf.random.log_uniform_candidate_sampler(
        tf.constant(words_V[:, None]), 1, 32, False, vocab, seed=1
    )
    np.testing.assert_allclose(np.exp(sampler.log_expected_counts(words_V, 32)), expected_V1.numpy()[:, 0], rtol=1e-5)


@needs_tensorflow
def test_distinct_log_uniform_words_are_expected_as_tensorflow_expects_them():
    """TensorFlow counts the tries of a batch, and they follow from what it expects of any one word."""
    import tensorflow as tf

    sampler = Sampler.of(samplers.probabilities("log_uniform", zipf_counts(400)), unique=True)
    words_V = np.arange(400)
    tries = []
    for seed in range(40):
        sampled = tf.random.log_uniform_candidate_sampler(tf.constant(words_V[:, None]), 1, 32, True, 400, seed=seed)
        expected_V = sampled.true_expected_count.numpy()[:, 0].astype(np.float64)
        tries.append(round(np.log1p(-expected_V[100]) / np.log1p(-sampler.probability_V[100])))
        ours_V = sampler.log_expected_counts(words_V, 32, tries=tries[-1])
        np.testing.assert_allclose(np.exp(ours_V), expected_V, rtol=1e-4)
    assert np.mean(tries) == pytest.approx(sampler.tries(32), rel=0.1)


def after(before, pairs, unigram_V, share):
    """(V,) P(w | before) by its definition."""
    seen_V = np.zeros(len(unigram_V))
    for first, word, count in pairs:
        seen_V[word] += count * (first == before)
    return share * seen_V / seen_V.sum() + (1 - share) * unigram_V if seen_V.any() else unigram_V


ids = st.integers(0, 4)


@given(
    pairs=st.lists(st.tuples(ids, ids, st.integers(1, 9) | st.just(2**50)), min_size=1, max_size=20),
    before=st.lists(st.integers(-1, 4), min_size=1, max_size=9),
    counts=st.lists(st.integers(0, 9), min_size=5, max_size=5),
    share=st.sampled_from([0.0, 0.3, 0.999]),
)
@settings(max_examples=200, deadline=None)
def test_bigrams_are_expected_as_after_a_word_picked_at_random(pairs, before, counts, share):
    unigram = Sampler.of(samplers.probabilities("unigram", np.array(counts)))
    sampler = BigramSampler.of(bigrams.check_pairs(np.array(pairs), 5), unigram, share=share)
    truth_V = np.mean([after(word, pairs, unigram.probability_V, share) for word in before], axis=0)
    np.testing.assert_allclose(np.exp(sampler.log_expected_counts(9, np.array(before))), 9 * truth_V, rtol=1e-9)
    possible = np.flatnonzero(truth_V)
    assert np.isin(sampler.draw(np.random.default_rng(0), 50, np.array(before)), possible).all()


# Words seen before others and not, the last and the first of the vocabulary among both, and a place that has none.
@pytest.mark.parametrize("before", [[0], [5], [-1], [3, 3, 1], [-1, 0, 5, 5, 2]])
def test_bigrams_are_drawn_as_often_as_expected(before):
    pairs = np.array([(0, 0, 3), (0, 5, 1), (3, 1, 700), (3, 2, 300), (1, 4, 2), (1, 0, 2)])
    unigram = Sampler.of(samplers.probabilities("unigram", np.array([10, 5, 40, 3, 2, 1])))
    sampler = BigramSampler.of(pairs, unigram, share=0.7)
    drawn = sampler.draw(np.random.default_rng(2), 50_000, np.array(before))
    expected_V = np.exp(sampler.log_expected_counts(50_000, np.array(before)))
    assert stats.chisquare(np.bincount(drawn, minlength=6), expected_V).pvalue > 1e-3
