"""The losses over sampled words: TensorFlow's own values and gradients, limits, and what a caller may give."""

import importlib.util
from typing import Any

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.tolerances import tolerance
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.models.language_model import LanguageModelConfig
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.structures import bigrams

pytestmark = pytest.mark.many_cells

FRAMEWORKS = registry.installed_frameworks()
METHODS = ("sampled_softmax", "nce", "negative_sampling")
V, D, N, S = 120, 16, 90, 40
COUNTS = zipf_counts(V)
INPUTS = batch(COUNTS, tokens=N, dim=D, seed=4)
# With replacement, so that words are repeated among the samples, and are targets too.
SAMPLED = np.random.default_rng(3).choice(V, S, p=COUNTS / COUNTS.sum())
DISTINCT = np.random.default_rng(3).choice(V, S, p=COUNTS / COUNTS.sum(), replace=False)

# Of a text whose words hang on the word before.
TEXT = (np.cumsum(np.random.default_rng(8).choice([0, 1, 1, 2, 7], 3000)) % V).astype(np.int64)
BIGRAM = {"sampler": "bigram", "pairs": bigrams.count_pairs(TEXT, V)}
BEFORE = np.where(np.arange(N) % 9, TEXT[:N], -1)  # every ninth target is the first of a text

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed"
)


def make(framework, method, **options):
    layer = layers.create(framework, method, counts=COUNTS, dim=D, seed=2, samples=S, **options)
    rng = np.random.default_rng(7)
    layer.load({name: rng.standard_normal(shape) for name, shape in layer.spec.parameter_shapes().items()})
    return layer


def log_expected(layer):
    return layer.spec.structure["correction"]


def tensorflows(name, layer, expected_V, sampled_S):
    """Loss and gradients by hidden, weight and bias of TensorFlow's own function, in float64."""
    import tensorflow as tf

    params = layer.parameters()
    hidden, weight, bias = map(tf.constant, (INPUTS.hidden_ND, params["weight"], params["bias"]))
    values = (
        tf.constant(sampled_S),
        tf.constant(expected_V[INPUTS.targets_N][:, None]),
        tf.constant(expected_V[sampled_S]),
    )
    with tf.GradientTape() as tape:
        tape.watch((hidden, weight, bias))
        losses_N = getattr(tf.nn, name)(
            weight,
            bias,
            tf.constant(INPUTS.targets_N[:, None]),
            hidden,
            S,
            V,
            sampled_values=values,
            remove_accidental_hits=layer.spec.options["remove_hits"],
        )
        loss = tf.reduce_mean(losses_N)
    grads = [tf.convert_to_tensor(grad).numpy() for grad in tape.gradient(loss, (hidden, weight, bias))]
    return float(loss), grads


@needs_tensorflow
@pytest.mark.parametrize("remove_hits", [False, True])
@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_is_what_tensorflow_computes(framework, method, unique, remove_hits):
    # TensorFlow removes one hit of a word alone, so that of repeated words some would stay.
    sampled_S = DISTINCT if remove_hits else SAMPLED
    assert np.isin(INPUTS.targets_N, sampled_S).any()
    layer = make(framework, method, unique=unique, remove_hits=remove_hits)
    assert (log_expected(layer) != 0).any() == (method != "negative_sampling")
    # Without its corrections, noise-contrastive estimation is negative sampling: every word is expected once.
    name = "sampled_softmax_loss" if method == "sampled_softmax" else "nce_loss"
    their_loss, theirs = tensorflows(name, layer, np.exp(log_expected(layer)), sampled_S)
    loss, dhidden_ND, grads = layer.loss_and_grads(INPUTS.hidden_ND, INPUTS.targets_N, sampled_ids=sampled_S)
    assert loss == pytest.approx(their_loss, rel=tolerance("loss", layer.spec.dtype, D))
    assert layer.loss(INPUTS.hidden_ND, INPUTS.targets_N, sampled_ids=sampled_S) == pytest.approx(loss, rel=1e-6)
    for quantity, ours, their in zip(
        ("grad_hidden", "grad_parameter", "grad_parameter"),
        (dhidden_ND, grads["weight"], grads["bias"]),
        theirs,
        strict=True,
    ):
        bound = tolerance(quantity, layer.spec.dtype, N)
        np.testing.assert_allclose(ours, their, rtol=0, atol=bound * np.abs(their).max())


@needs_tensorflow
@pytest.mark.parametrize(
    ("method", "options", "name"),
    [
        ("sampled_softmax", {"remove_hits": False}, "sampled_softmax_loss"),
        ("nce", {}, "nce_loss"),
        ("nce", {"normaliser": "log_vocab"}, "nce_loss"),
    ],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_with_a_batchs_own_correction_it_is_what_tensorflow_computes(framework, method, options, name):
    layer = make(framework, method, **BIGRAM, **options)
    extra: Any = layer.spec.draw_extra(np.random.default_rng(3), BEFORE)
    fixed = log_expected(layer)
    assert np.abs(extra["correction"] - fixed).max() > 0.1
    their_loss, theirs = tensorflows(name, layer, np.exp(extra["correction"]), extra["sampled_ids"])
    loss, dhidden_ND, grads = layer.loss_and_grads(INPUTS.hidden_ND, INPUTS.targets_N, **extra)
    assert loss == pytest.approx(their_loss, rel=tolerance("loss", layer.spec.dtype, D))
    assert loss != pytest.approx(layer.loss(INPUTS.hidden_ND, INPUTS.targets_N, sampled_ids=extra["sampled_ids"]))
    for ours, their in zip((dhidden_ND, grads["weight"], grads["bias"]), theirs, strict=True):
        bound = tolerance("grad_parameter", layer.spec.dtype, N)
        np.testing.assert_allclose(ours, their, rtol=0, atol=bound * np.abs(their).max())


@needs_tensorflow
def test_the_peer_takes_a_batchs_own_correction():
    options = {**BIGRAM, "dtype": "float64"}
    definition, peer = (
        make("numpy", "sampled_softmax", **options),
        make("tensorflow", "sampled_softmax_loss", **options),
    )
    extra: Any = definition.spec.draw_extra(np.random.default_rng(3), BEFORE)
    assert len(np.unique(extra["sampled_ids"])) < S  # of words drawn twice too
    expected, expected_ND, _ = definition.loss_and_grads(INPUTS.hidden_ND, INPUTS.targets_N, **extra)
    loss, dhidden_ND, _ = peer.loss_and_grads(INPUTS.hidden_ND, INPUTS.targets_N, **extra)
    assert loss == pytest.approx(expected, rel=tolerance("loss", "float64", D))
    bound = tolerance("grad_hidden", "float64", N)
    np.testing.assert_allclose(dhidden_ND, expected_ND, rtol=0, atol=bound * np.abs(expected_ND).max())


def test_the_normaliser_is_estimated_without_bias():
    """The mean over many batches of the summed e^(s_w) / E[w] is the whole sum, for every token of the batch."""
    layer = make("numpy", "sampled_softmax", **BIGRAM)
    rng, params = np.random.default_rng(4), layer.parameters()
    exp_scores_NV = np.exp(INPUTS.hidden_ND @ params["weight"].T / 8 + params["bias"])
    estimates = []
    for _ in range(4000):
        extra: Any = layer.spec.draw_extra(rng, BEFORE)
        weighted_NV = exp_scores_NV / np.exp(extra["correction"])
        estimates.append(weighted_NV[:, extra["sampled_ids"]].sum(axis=1))
    error_N = np.std(estimates, axis=0) / np.sqrt(len(estimates))
    assert (np.abs(np.mean(estimates, axis=0) - exp_scores_NV.sum(axis=1)) < 4 * error_N).all()
    assert (error_N < 0.05 * exp_scores_NV.sum(axis=1)).all()


def test_with_many_samples_by_the_word_before_the_gradient_is_full_softmaxs():
    layer = layers.create(
        "numpy", "sampled_softmax", counts=COUNTS, dim=D, samples=200_000, remove_hits=False, share=0.8, **BIGRAM
    )
    full = layers.create("numpy", "full_softmax", counts=COUNTS, dim=D)
    full.load(layer.parameters())
    extra: Any = layer.spec.draw_extra(np.random.default_rng(1), BEFORE)
    _, dhidden_ND, grads = layer.loss_and_grads(INPUTS.hidden_ND, INPUTS.targets_N, **extra)
    _, expected_ND, expected = full.loss_and_grads(INPUTS.hidden_ND, INPUTS.targets_N)
    np.testing.assert_allclose(dhidden_ND, expected_ND, atol=0.02 * np.abs(expected_ND).max())
    np.testing.assert_allclose(grads["weight"], expected["weight"], atol=0.02 * np.abs(expected["weight"]).max())


@pytest.mark.parametrize("method", METHODS)
def test_without_the_words_before_bigrams_are_the_unigram(method):
    by_bigram = layers.spec(method, counts=COUNTS, dim=D, **BIGRAM)
    by_unigram = layers.spec(method, counts=COUNTS, dim=D, sampler="unigram")
    np.testing.assert_array_equal(by_bigram.structure["correction"], by_unigram.structure["correction"])
    drawn, expected = (each.draw_extra(np.random.default_rng(5)) for each in (by_bigram, by_unigram))
    assert drawn.keys() == expected.keys() == {"sampled_ids"}
    np.testing.assert_array_equal(drawn["sampled_ids"], expected["sampled_ids"])
    by_words = by_bigram.draw_extra(np.random.default_rng(5), BEFORE)
    assert ("correction" in by_words) == (method != "negative_sampling")
    assert (by_words["sampled_ids"] != expected["sampled_ids"]).any()
    # Other samplers read no words.
    found = by_unigram.draw_extra(np.random.default_rng(5), BEFORE)
    np.testing.assert_array_equal(found["sampled_ids"], expected["sampled_ids"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_evaluated_it_is_full_softmax(framework, method):
    layer, full = make(framework, method), layers.create("numpy", "full_softmax", counts=COUNTS, dim=D)
    params = layer.parameters()
    full.load(params)
    hidden_ND, targets_N = INPUTS.hidden_ND, INPUTS.targets_N
    rtol = 1e-5 if layer.spec.dtype == "float32" else 1e-12
    np.testing.assert_allclose(layer.log_probs(hidden_ND), full.log_probs(hidden_ND), rtol=rtol)
    picked_N = layer.target_log_probs(hidden_ND, targets_N)
    np.testing.assert_allclose(picked_N, full.target_log_probs(hidden_ND, targets_N), rtol=rtol)
    assert layer.topk(hidden_ND, 5)[1].tolist() == full.topk(hidden_ND, 5)[1].tolist()
    uniforms_NU = np.random.default_rng(5).random((N, 1))
    assert (layer.sample(hidden_ND, uniforms_NU) == full.sample(hidden_ND, uniforms_NU)).mean() > 0.98


def test_every_word_sampled_once_is_full_softmax():
    """With all words expected once and hits left out, the sampled sum is the whole one."""
    layer = layers.create("numpy", "sampled_softmax", counts=COUNTS, dim=D, samples=V, unique=True)
    full = layers.create("numpy", "full_softmax", counts=COUNTS, dim=D)
    full.load(layer.parameters())
    loss, dhidden_ND, grads = layer.loss_and_grads(INPUTS.hidden_ND, INPUTS.targets_N)
    their_loss, their_dhidden_ND, theirs = full.loss_and_grads(INPUTS.hidden_ND, INPUTS.targets_N)
    assert loss == pytest.approx(their_loss, rel=1e-12)
    np.testing.assert_allclose(dhidden_ND, their_dhidden_ND, atol=1e-12)
    for name, value in theirs.items():
        np.testing.assert_allclose(grads[name], value, atol=1e-12)


@pytest.mark.parametrize(("sampler", "each"), [("unigram", [256, 81, 16]), ("powered_unigram", [64, 27, 8])])
def test_noise_contrastive_estimation_finds_the_distribution_normalised(sampler, each):
    """For one context, with words sampled just as often as expected: the scores become log-probabilities."""
    counts_V = np.array([256, 81, 16])
    layer = layers.create("numpy", "nce", counts=counts_V, dim=1, samples=sum(each), sampler=sampler)
    step = layer.prepare(
        "layer_step",
        np.ones((353, 1)),
        np.repeat(np.arange(3), counts_V),
        optimizer=Optimizer(learning_rate=1.0, weight_decay=0.0, clip_norm=0.0),
        sampled_ids=np.repeat(np.arange(3), each),
    )
    for _ in range(200):
        step()
    params = layer.parameters()
    np.testing.assert_allclose(np.exp(params["weight"][:, 0] + params["bias"]), counts_V / 353, rtol=1e-3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_normalisers(framework):
    """A fixed log Z moves every score; a learned one does as the parameter that it is. All start from one loss."""
    fixed, by_vocab, learned = (make(framework, "nce", normaliser=each) for each in ("fixed", "log_vocab", "learned"))
    args = {"hidden": INPUTS.hidden_ND, "targets": INPUTS.targets_N, "sampled_ids": SAMPLED}
    losses = []
    for layer in (fixed, by_vocab, learned):
        layer.load(layer.spec.initial_parameters())
        losses.append(layer.loss(**args))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    params = fixed.parameters()
    for other, log_normaliser in ((fixed, 0.0), (by_vocab, np.log(V))):
        learned.load({**params, "log_normaliser": np.array([log_normaliser])})
        other.load(params)
        (loss, _, grads), (their_loss, _, theirs) = (one.loss_and_grads(**args) for one in (learned, other))
        assert loss == pytest.approx(their_loss, rel=1e-5)
        np.testing.assert_allclose(grads["weight"], theirs["weight"], atol=1e-5)
        assert grads["log_normaliser"] == pytest.approx([-theirs["bias"].sum()], rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_token_whose_samples_are_all_hits_has_a_finite_loss(framework, method):
    layer = make(framework, method, remove_hits=True)
    targets_N = np.full(N, 3)
    targets_N[0] = 5
    loss, dhidden_ND, grads = layer.loss_and_grads(INPUTS.hidden_ND, targets_N, sampled_ids=np.array([3, 3]))
    oracle = make("numpy", method, remove_hits=True)
    expected = oracle.loss_and_grads(INPUTS.hidden_ND, targets_N, sampled_ids=np.array([3, 3]))
    assert loss == pytest.approx(expected[0], rel=1e-5)
    np.testing.assert_allclose(dhidden_ND, expected[1], atol=1e-6)
    np.testing.assert_allclose(grads["weight"], expected[2]["weight"], atol=1e-6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ids_left_out_are_drawn_from_the_seed_alike_everywhere(framework):
    layer = make(framework, "sampled_softmax", sampler="powered_unigram")
    drawn: Any = layer.spec.draw_extra(np.random.default_rng([2, 6]))
    assert drawn["sampled_ids"].shape == (S,)
    args = INPUTS.hidden_ND, INPUTS.targets_N
    assert layer.loss(*args) == layer.loss(*args, **drawn) != layer.loss(*args, sampled_ids=SAMPLED)


@pytest.mark.parametrize("options", [{}, BIGRAM], ids=["by rank", "by the word before"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_step_of_a_model_draws_other_words(framework, options):
    """Without learning, what differs between two equal steps is the words drawn."""
    config = LanguageModelConfig(embedding=4, hidden=6, optimizer=Optimizer(name="sgd", learning_rate=0.0), seed=3)
    spec = layers.spec("nce", counts=COUNTS, dim=6, dtype="float64", samples=3, **options)
    text_BT = np.random.default_rng(0).integers(0, V, (2, 9))
    losses = []
    for name in (framework, "numpy"):
        model = layers.create_network(name, spec, config)
        losses.append([float(model.step(text_BT[:, :-1], text_BT[:, 1:], carry=False)) for _ in range(3)])
        scores = [model.evaluate(text_BT[:, :-1], text_BT[:, 1:], carry=False)["nll"] for _ in range(2)]
        assert scores[0] == scores[1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert len(set(losses[1])) == 3


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"sampled": [1]}, "unknown input of sampled_softmax 'sampled': did you mean 'sampled_ids'"),
        ({"sampled_ids": []}, r"sampled_ids has shape \(0,\)"),
        ({"sampled_ids": [[1]]}, r"sampled_ids has shape \(1, 1\): allowed: one dimension"),
        ({"sampled_ids": [1.0]}, "sampled_ids has dtype float64: allowed: whole numbers"),
        ({"sampled_ids": [3, V]}, rf"sampled_ids\[1\]={V}: allowed: word ids from 0 to {V - 1}"),
        ({"sampled_ids": [-1]}, r"sampled_ids\[0\]=-1"),
        ({"correction": [1.0]}, rf"correction has shape \(1,\) and dtype float64: allowed: {V} finite numbers"),
        ({"correction": [np.nan] * V}, rf"correction has .*: allowed: {V} finite numbers, one for each word"),
    ],
)
def test_bad_ids_are_refused(extra, message):
    layer, args = make("numpy", "sampled_softmax"), (INPUTS.hidden_ND, INPUTS.targets_N)
    calls = (layer.loss, layer.loss_and_grads, lambda *args, **extra: layer.prepare("layer", *args, **extra))
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call(*args, **extra)


def test_other_methods_take_no_ids_and_distinct_words_must_exist():
    full = layers.create("numpy", "full_softmax", counts=COUNTS, dim=D)
    with pytest.raises(ValueError, match=r"unknown input of full_softmax 'sampled_ids': allowed: label_smoothing"):
        full.loss(INPUTS.hidden_ND, INPUTS.targets_N, sampled_ids=SAMPLED)
    with pytest.raises(ValueError, match="samples=121 with unique=True: allowed: at most 120"):
        layers.create("numpy", "nce", counts=COUNTS, dim=D, samples=V + 1, unique=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "bigram"}, "option pairs is missing with sampler='bigram': allowed: pairs with 'bigram' alone"),
        ({"pairs": BIGRAM["pairs"]}, "option pairs is given with sampler='log_uniform'"),
        ({**BIGRAM, "unique": True}, "option unique=True with sampler='bigram': allowed: False"),
        ({**BIGRAM, "share": 1.0}, r"option share=1.0: allowed: a number from 0.0 to 0.999"),
        ({**BIGRAM, "pairs": [[0, V, 1]]}, rf"option pairs\[0\]=\[0, {V}, 1\]: allowed: word before and word"),
    ],
)
def test_a_sampler_by_the_word_before_says_what_it_takes(options, message):
    with pytest.raises(ValueError, match=message):
        layers.spec("nce", counts=COUNTS, dim=D, **options)


def test_words_before_that_cannot_be_are_refused():
    spec, rng = layers.spec("nce", counts=COUNTS, dim=D, **BIGRAM), np.random.default_rng(0)
    for before, message in (([-2], r"before\[0\]=-2"), ([0, V], rf"before\[1\]={V}"), ([], r"before has shape \(0,\)")):
        with pytest.raises(ValueError, match=message):
            spec.draw_extra(rng, before)
    layer = make("numpy", "negative_sampling", **BIGRAM)
    with pytest.raises(ValueError, match="unknown input of negative_sampling 'correction': allowed: sampled_ids"):
        layer.loss(INPUTS.hidden_ND, INPUTS.targets_N, correction=np.zeros(V))
