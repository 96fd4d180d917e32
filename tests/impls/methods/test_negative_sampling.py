"""Negative sampling with words for each token: its definition, its draws, its calls, and the training of models."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.models.bag_model import BagModelConfig
from vocabench.impls.models.language_model import LanguageModelConfig
from vocabench.impls.models.summarizer import PADDING, SummarizerConfig
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.structures import bigrams, samplers

pytestmark = pytest.mark.many_cells

EVERY = registry.installed_frameworks()
FRAMEWORKS = [name for name in EVERY if name != "numpy"]
V, D, N, S = 60, 8, 12, 3
COUNTS = zipf_counts(V)
INPUTS = batch(COUNTS, tokens=N, dim=D, seed=4)
HIDDEN, TARGETS = INPUTS.hidden_ND, INPUTS.targets_N
SAMPLED = np.random.default_rng(3).integers(0, 7, (N, S))  # so few words that some are repeated, and some are targets
WORD2VEC: dict[str, Any] = {
    "sharing": "token",
    "samples": 5,
    "sampler": "powered_unigram",
    "bias": False,
    "initial": "zero",
}


def make(framework, **options):
    options = {"sharing": "token", "samples": S, "dtype": "float64", **options}
    layer = layers.create(framework, "negative_sampling", counts=COUNTS, dim=D, seed=2, **options)
    rng = np.random.default_rng(7)
    layer.load({name: rng.standard_normal(shape) for name, shape in layer.spec.parameter_shapes().items()})
    return layer


def spec_of(**options):
    return layers.spec("negative_sampling", counts=COUNTS, dim=D, **{"sharing": "token", "samples": S, **options})


# The definition.
@pytest.mark.parametrize("options", [{}, {"remove_hits": False, "bias": False}])
@pytest.mark.parametrize("framework", EVERY)
def test_each_token_is_a_batch_of_its_own_that_shares_its_samples(framework, options):
    assert (TARGETS[:, None] == SAMPLED).any()
    layer, shared = make(framework, **options), make("numpy", sharing="batch", **options)
    loss, dhidden_ND, grads = layer.loss_and_grads(HIDDEN, TARGETS, sampled_ids=SAMPLED)
    each = [shared.loss_and_grads(HIDDEN[[n]], TARGETS[[n]], sampled_ids=SAMPLED[n]) for n in range(N)]
    assert loss == pytest.approx(np.mean([one for one, _, _ in each]), rel=1e-12)
    np.testing.assert_allclose(dhidden_ND, np.concatenate([one for _, one, _ in each]) / N, atol=1e-12)
    assert grads.keys() == each[0][2].keys()
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, np.mean([one[name] for _, _, one in each], axis=0), atol=1e-12)


@pytest.mark.parametrize("framework", EVERY)
def test_the_gradient_of_a_token_depends_on_its_own_samples_alone(framework):
    layer, other = make(framework), SAMPLED.copy()
    other[4] = [50, 51, 52]
    before, after = (layer.loss_and_grads(HIDDEN, TARGETS, sampled_ids=ids)[1] for ids in (SAMPLED, other))
    changed_N = np.abs(before - after).max(axis=1) > 1e-6
    assert np.flatnonzero(changed_N).tolist() == [4]


@pytest.mark.parametrize("framework", EVERY)
def test_a_weight_counts_the_samples_of_its_token(framework):
    layer, weight_N = make(framework), np.zeros(N)
    weight_N[5] = 2.5
    loss, dhidden_ND, _ = layer.loss_and_grads(HIDDEN, TARGETS, token_weight=weight_N, sampled_ids=SAMPLED)
    alone, dalone_1D, _ = make("numpy").loss_and_grads(HIDDEN[[5]], TARGETS[[5]], sampled_ids=SAMPLED[[5]])
    assert loss == pytest.approx(alone, rel=1e-12)
    np.testing.assert_allclose(dhidden_ND[5], dalone_1D[0], atol=1e-12)
    assert not dhidden_ND[np.arange(N) != 5].any()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_agrees_in_every_precision(framework, dtype):
    """With the settings of word2vec, but other parameters than zeros."""
    layer = make(framework, dtype=dtype, **{**WORD2VEC, "initial": "uniform"})
    found = agreement.check_layer(layer, batch(COUNTS, tokens=130, dim=D, seed=1), k=5)
    assert [str(one) for one in found if not one.agrees] == []
    assert "for each token" in layer.formulation()


@pytest.mark.parametrize("framework", EVERY)
def test_vectors_that_start_at_zero_tell_no_word_from_another(framework):
    layer = layers.create(framework, "negative_sampling", counts=COUNTS, dim=D, seed=2, **WORD2VEC, remove_hits=False)
    assert layer.parameters().keys() == {"weight"}
    assert not layer.parameters()["weight"].any()
    assert layer.loss(HIDDEN, TARGETS) == pytest.approx(6 * np.log(2), rel=1e-6)


def test_the_least_work_is_counted_token_by_token():
    layer, targets, ids = make("numpy"), [1, 2], [[2, 7, 7], [9, 1, 8]]
    found = layer.least_work(targets, sampled_ids=ids)
    assert found is not None
    assert found.flops == 6 * D * (2 + 2 + 3)
    assert found.bytes == 8 * 2 * (5 * (D + 1) + 2 * D)


def test_pytorch_multiplies_with_each_sampled_word_once():
    pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    work = make("torch").prepare("layer", HIDDEN, TARGETS, sampled_ids=np.arange(N * S).reshape(N, S) + V - N * S)
    with FlopCounterMode(display=False) as counter:
        work()
    assert counter.get_total_flops() == 6 * D * N * S


# Draws.
def test_words_are_drawn_for_each_token_in_proportion_to_the_power_of_their_counts():
    spec = spec_of(sampler="powered_unigram")
    drawn = spec.draw_extra(np.random.default_rng(0), tokens=20_000)
    assert drawn.keys() == {"sampled_ids"}
    assert drawn["sampled_ids"].shape == (20_000, S)
    expected_V = samplers.probabilities("powered_unigram", COUNTS) * 20_000
    for column in drawn["sampled_ids"].T:
        assert stats.chisquare(np.bincount(column, minlength=V), expected_V).pvalue > 1e-3
    assert len(np.unique(drawn["sampled_ids"], axis=0)) > 1000


@given(tokens=st.integers(0, 9), samples=st.integers(1, 9), bigram=st.booleans(), before=st.booleans())
@settings(max_examples=30, deadline=None)
def test_any_number_of_words_for_any_number_of_tokens(tokens, samples, bigram, before):
    by_word: dict[str, Any] = {"sampler": "bigram", "pairs": [[3, 4, 1]]} if bigram else {}
    spec = spec_of(samples=samples, **by_word)
    words = np.arange(tokens) % V - 1 if before and tokens else None
    ids = spec.draw_extra(np.random.default_rng(1), words, tokens=tokens)["sampled_ids"]
    assert ids.shape == (tokens, samples)
    assert ids.dtype == np.int64
    assert ((ids >= 0) & (ids < V)).all()


def test_with_the_word_before_each_token_draws_by_its_own():
    text = np.arange(2000) % V  # each word has one successor
    spec = spec_of(sampler="bigram", pairs=bigrams.count_pairs(text, V), share=0.999, samples=20)
    before = np.array([3, -1, 40, 3])
    ids = spec.draw_extra(np.random.default_rng(0), before)["sampled_ids"]
    assert ids.shape == (4, 20)
    follows = (ids == before[:, None] + 1).mean(axis=1)
    assert (follows[[0, 2, 3]] > 0.9).all()
    assert follows[1] < 0.9
    assert "correction" not in spec.draw_extra(np.random.default_rng(0), before)


def test_what_cannot_be_drawn_is_refused_in_one_line():
    rng = np.random.default_rng(0)
    for call, message in (
        (lambda: spec_of(unique=True), "option unique=True with sharing='token': allowed: False"),
        (lambda: spec_of(sharing="text"), "option sharing='text': allowed: 'batch', 'token'"),
        (lambda: spec_of(initial="one"), "option initial='one': allowed: 'uniform', 'zero'"),
        (lambda: spec_of().draw_extra(rng), "tokens is missing with option sharing='token': allowed: "),
        (lambda: spec_of().draw_extra(rng, [1, 2], tokens=3), r"before has shape \(2,\) with tokens=3: allowed: \(3"),
        (lambda: layers.spec("nce", counts=COUNTS, dim=D, sharing="token"), "unknown option of nce 'sharing'"),
    ):
        with pytest.raises(BadInput, match=message) as refused:
            call()
        assert len(str(refused.value).splitlines()) == 1


def test_samples_that_all_tokens_share_are_drawn_as_before():
    drawn = spec_of(sharing="batch").draw_extra(np.random.default_rng(5), tokens=N)["sampled_ids"]
    other = layers.spec("nce", counts=COUNTS, dim=D, samples=S).draw_extra(np.random.default_rng(5))["sampled_ids"]
    np.testing.assert_array_equal(drawn, other)


@pytest.mark.parametrize("framework", EVERY)
def test_ids_left_out_are_drawn_from_the_seed_alike_everywhere(framework):
    layer = make(framework)
    drawn = layer.spec.draw_extra(np.random.default_rng([2, 6]), tokens=N)["sampled_ids"]
    assert drawn.shape == (N, S)
    assert layer.loss(HIDDEN, TARGETS) == layer.loss(HIDDEN, TARGETS, sampled_ids=drawn)
    assert layer.loss(HIDDEN, TARGETS) != layer.loss(HIDDEN, TARGETS, sampled_ids=SAMPLED)


# Calls.
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 3], rf"sampled_ids has shape \(3,\): allowed: \({N}, S\)"),
        (SAMPLED[1:], rf"sampled_ids has shape \({N - 1}, {S}\): allowed: \({N}, S\)"),
        (SAMPLED[:, :0], rf"sampled_ids has shape \({N}, 0\): allowed: \({N}, S\)"),
        (SAMPLED.astype(float), "sampled_ids has dtype float64: allowed: whole numbers"),
        (np.where(np.arange(S) == 2, V, SAMPLED), rf"sampled_ids\[0, 2\]={V}: allowed: word ids from 0 to {V - 1}"),
    ],
)
def test_bad_ids_are_refused(ids, message):
    layer = make("numpy")
    calls = (layer.loss, layer.loss_and_grads, lambda *args, **extra: layer.prepare("layer", *args, **extra))
    for call in calls:
        with pytest.raises(BadInput, match=message):
            call(HIDDEN, TARGETS, sampled_ids=ids)
    with pytest.raises(BadInput, match=message):
        layer.least_work(TARGETS, sampled_ids=ids)


def torch_native(spec):
    import torch

    from vocabench.impls.on_torch.native import native

    layer = native(spec)

    def loss(hidden, targets, sampled_ids=None, seed=0, **options):
        given = {} if sampled_ids is None else {"sampled_ids": torch.tensor(sampled_ids)}
        generator = torch.Generator().manual_seed(seed)
        arrays = torch.tensor(hidden), torch.tensor(targets)
        return layer(*arrays, generator=generator, **given, **options).detach().numpy()

    return SimpleNamespace(loss=loss)


def tensorflow_native(spec):
    import tensorflow as tf

    from vocabench.impls.on_tensorflow.native import native

    layer = native(spec)

    def loss(hidden, targets, sampled_ids=None, seed=0, **options):
        given = {} if sampled_ids is None else {"sampled_ids": tf.constant(sampled_ids)}
        generator = tf.random.Generator.from_seed(seed)
        return layer(tf.constant(hidden), tf.constant(targets), generator=generator, **given, **options).numpy()

    return SimpleNamespace(loss=loss)


def jax_native(spec):
    import jax
    import jax.numpy as jnp

    from vocabench.impls.on_jax.native import native

    layer = native(spec)
    params, structure = layer.init()

    def loss(hidden, targets, sampled_ids=None, seed=0, **options):
        given = {} if sampled_ids is None else {"sampled_ids": jnp.asarray(sampled_ids)}
        arrays = jnp.asarray(hidden), jnp.asarray(targets)
        return np.asarray(layer.loss(params, structure, *arrays, key=jax.random.key(seed), **given, **options))

    return SimpleNamespace(loss=loss)


NATIVES = {"torch": torch_native, "tensorflow": tensorflow_native, "jax": jax_native}


@pytest.fixture(scope="module", params=FRAMEWORKS)
def native(request):
    return NATIVES[request.param](spec_of())


def test_leading_axes_and_padding(native):
    hidden, targets = HIDDEN.astype(np.float32).reshape(3, 4, D), TARGETS.reshape(3, 4)
    flat_N = native.loss(hidden.reshape(N, D), TARGETS, SAMPLED, reduction="none")
    for ids in (SAMPLED, SAMPLED.reshape(3, 4, S)):
        losses = native.loss(hidden, targets, ids, reduction="none")
        np.testing.assert_allclose(losses, flat_N.reshape(3, 4), rtol=1e-6)
    assert native.loss(hidden[1, 2], targets[1, 2], SAMPLED[6]) == pytest.approx(flat_N[6], rel=1e-6)
    padded_N, broken_ND = TARGETS.copy(), hidden.reshape(N, D).copy()
    padded_N[[0, 7]] = -100
    broken_ND[[0, 7]] = np.nan
    real_N = padded_N != -100
    losses_N = native.loss(broken_ND, padded_N, SAMPLED, reduction="none")
    np.testing.assert_allclose(losses_N, np.where(real_N, flat_N, 0), rtol=1e-6)
    assert native.loss(broken_ND, padded_N, SAMPLED) == pytest.approx(flat_N[real_N].mean(), rel=1e-6)


def test_words_that_a_call_leaves_out_are_drawn_for_each_token(native):
    """The same vector and target in each place has other losses, which the generator decides."""
    hidden = np.broadcast_to(HIDDEN[:1], (2, 20, D)).astype(np.float32)
    targets = np.full((2, 20), TARGETS[0])
    losses = [native.loss(hidden, targets, seed=seed, reduction="none") for seed in (0, 0, 1)]
    assert losses[0].shape == (2, 20)
    assert len(np.unique(losses[0])) > 20
    np.testing.assert_array_equal(losses[0], losses[1])
    assert (losses[0] != losses[2]).any()
    assert native.loss(hidden[:0], targets[:0]) == 0


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (SAMPLED[0], rf"sampled_ids has shape \({S},\) and dtype .*int64.*: allowed: \(3, 4, S\) word ids, S from 1"),
        (SAMPLED[1:], rf"sampled_ids has shape \({N - 1}, {S}\)"),
        (SAMPLED.reshape(4, 3, S), rf"sampled_ids has shape \(4, 3, {S}\)"),
        (SAMPLED[:, :0], rf"sampled_ids has shape \({N}, 0\)"),
        (SAMPLED.astype(np.float32), "sampled_ids has shape .* and dtype .*float32"),
        (SAMPLED + V, "sampled_ids holds an id outside the vocabulary"),
    ],
)
def test_ids_that_a_call_cannot_take_are_refused_in_one_line(native, ids, message):
    hidden, targets = HIDDEN.astype(np.float32).reshape(3, 4, D), TARGETS.reshape(3, 4)
    # JAX holds integers in 32 bits.
    with pytest.raises(BadInput, match=message.replace("int64", "int(64|32)")) as refused:
        native.loss(hidden, targets, ids)
    assert len(str(refused.value).splitlines()) == 1


def test_tensorflow_takes_batches_of_unknown_size():
    tf = pytest.importorskip("tensorflow")
    from vocabench.impls.on_tensorflow.native import native

    layer = native(spec_of())
    hidden_ND = HIDDEN.astype(np.float32)
    like = [tf.TensorSpec([None, D]), tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)]
    given_ids = tf.function(lambda hidden, targets, ids: layer(hidden, targets, sampled_ids=ids), input_signature=like)
    drawn = tf.function(lambda hidden, targets: layer(hidden, targets, reduction="none"), input_signature=like[:2])
    expected = layer(tf.constant(hidden_ND), tf.constant(TARGETS), sampled_ids=tf.constant(SAMPLED))
    assert float(given_ids(hidden_ND, TARGETS, SAMPLED)) == pytest.approx(float(expected), rel=1e-6)
    for tokens in (5, N):
        assert drawn(hidden_ND[:tokens], TARGETS[:tokens]).shape == (tokens,)
    with pytest.raises(tf.errors.InvalidArgumentError, match="sampled_ids and hidden have unlike numbers of tokens"):
        given_ids(hidden_ND, TARGETS, SAMPLED[:1])


def test_jax_exports_the_loss_for_any_number_of_tokens():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    from jax import export

    from vocabench.impls.on_jax.native import native

    layer = native(spec_of())
    trees = layer.init()
    (tokens,) = export.symbolic_shape("tokens")
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), trees)
    like = [jax.ShapeDtypeStruct((tokens, *last), dtype) for last, dtype in (((D,), "float32"), ((), "int32"))]
    ids = jax.ShapeDtypeStruct((tokens, S), jnp.int32)
    arrays = jnp.asarray(HIDDEN, jnp.float32), jnp.asarray(TARGETS, jnp.int32), jnp.asarray(SAMPLED, jnp.int32)

    def graded(params, structure, hidden, targets, ids):
        return jax.value_and_grad(layer.loss)(params, structure, hidden, targets, sampled_ids=ids)

    exported = export.deserialize(export.export(jax.jit(graded))(*shapes, *like, ids).serialize())
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5),
        exported.call(*trees, *arrays),
        graded(*trees, *arrays),
    )

    def drawn(params, structure, hidden, targets):
        return layer.loss(params, structure, hidden, targets, key=jax.random.key(0))

    with pytest.raises(BadInput, match=r"sampled_ids is missing for a symbolic number.*: allowed: \(tokens, S\)"):
        export.export(jax.jit(drawn))(*shapes, *like)


# Training.
@pytest.mark.many_cells
@pytest.mark.parametrize(("name", "decay"), [("adagrad", 0.0), ("adam", 0.01)])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_row_sparse_steps_of_a_model_are_the_dense_ones(framework, name, decay):
    dense = Optimizer(name=name, learning_rate=0.02, weight_decay=decay, clip_norm=0.1, epsilon=1e-8)
    spec = layers.spec("negative_sampling", counts=zipf_counts(350), dim=9, dtype="float64", sharing="token", samples=4)
    models = [
        layers.create_network(f, spec, LanguageModelConfig(embedding=7, hidden=9, optimizer=o, seed=1))
        for f, o in ((framework, dataclasses.replace(dense, row_sparse=True)), ("numpy", dense))
    ]
    text_BT = np.random.default_rng(0).integers(0, 350, (2, 17)).astype(np.int32)
    for step in range(4):
        window = text_BT[:, 4 * step : 4 * step + 4], text_BT[:, 4 * step + 1 : 4 * step + 5]
        losses = [float(model.step(*window, carry=step > 0)) for model in models]
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    ours, oracle = (model.parameters() for model in models)
    for key, value in oracle.items():
        np.testing.assert_allclose(ours[key], value, rtol=0, atol=1e-9, err_msg=key)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_row_sparse_step_of_the_layer_alone(framework):
    optimizer = Optimizer(clip_norm=0.1, weight_decay=0.01)
    ours, oracle = make(framework), make("numpy")
    assert ours.reaches_few_rows()
    for layer, settings_ in ((ours, dataclasses.replace(optimizer, row_sparse=True)), (oracle, optimizer)):
        step = layer.prepare("layer_step", HIDDEN, TARGETS, optimizer=settings_, sampled_ids=SAMPLED)
        for _ in range(3):
            step()
    for key, value in oracle.parameters().items():
        np.testing.assert_allclose(ours.parameters()[key], value, rtol=0, atol=1e-9, err_msg=key)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_padded_batches_of_a_model_are_the_definitions(framework):
    """Frameworks score other numbers of places: only those with a target, or some padding too."""
    spec = layers.spec("negative_sampling", counts=COUNTS, dim=D, dtype="float64", sharing="token", samples=S)
    config = SummarizerConfig(sources=31, end=1, embedding=5, hidden=D, optimizer=Optimizer(clip_norm=0.1), seed=3)
    models = [layers.create_network(name, spec, config) for name in (framework, "numpy")]
    rng = np.random.default_rng(0)
    sources_BS, targets_BT = rng.integers(0, 31, (6, 4)), rng.integers(0, V, (6, 5))
    targets_BT[np.arange(5) > rng.integers(0, 5, 6)[:, None]] = PADDING
    for _ in range(2):
        losses = [float(model.step(sources_BS.astype(np.int32), targets_BT.astype(np.int32))) for model in models]
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def cosines_of_two_groups(framework, *, rate, **options):
    """Train skip-gram on a text whose words have neighbours of their own group alone.

    Returns the cosines of words of the same group, and those of words of two groups.
    """
    words, half, tokens = 20, 10, 80
    spec = layers.spec(
        "negative_sampling", counts=np.full(words, 100), dim=8, dtype="float64", **{**WORD2VEC, **options}
    )
    plain = Optimizer(name="sgd", learning_rate=rate, weight_decay=0.0, clip_norm=0.0)
    model = layers.create_network(framework, spec, BagModelConfig(inputs=words, optimizer=plain, seed=1))
    rng = np.random.default_rng(1)
    for _ in range(100):
        inputs_N = rng.integers(0, words, tokens)
        model.step(inputs_N[:, None], rng.integers(0, half, tokens) + half * (inputs_N >= half))
    vectors_VD = model.parameters()["input"]
    vectors_VD = vectors_VD / np.linalg.norm(vectors_VD, axis=1, keepdims=True)
    cosine_VV, group_V = vectors_VD @ vectors_VD.T, np.arange(words) < half
    same_VV = group_V == group_V[:, None]
    return cosine_VV[same_VV], cosine_VV[~same_VV]


@pytest.mark.parametrize("framework", EVERY)
def test_word_vectors_separate_two_groups_of_words(framework):
    same, different = cosines_of_two_groups(framework, rate=4.0)
    assert same.min() > different.max() + 0.5


def test_samples_that_all_tokens_share_separate_the_groups_less_well():
    """A step moves each of the few samples away from all tokens at once, so that fast steps overshoot."""
    gaps = []
    for sharing in ("token", "batch"):
        same, different = cosines_of_two_groups("numpy", rate=10.0, sharing=sharing)
        gaps.append(same.mean() - different.mean())
    assert gaps[0] > 0.5 > 0.25 > gaps[1]
