"""SOHSM in training: statistics on the device, resumed runs, and vocabularies that change."""

from typing import Any

import numpy as np
import pytest

from vocabench.harness import registry

pytestmark = pytest.mark.many_cells

if "tensorflow" not in registry.installed_frameworks():
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

import keras

import vocabench.tensorflow
from vocabench.impls.errors import BadInput
from vocabench.impls.on_tensorflow.adapter import tf
from vocabench.impls.on_tensorflow.two_level import statistics
from vocabench.impls.structures.statistics import SMOOTHINGS, StatisticsWeights

VOCAB, DIM = 60, 8
COUNTS = np.arange(VOCAB, 0, -1) ** 2


def layer_of(method: str = "sohsm", **options) -> Any:
    return vocabench.tensorflow.layer(method, counts=COUNTS, dim=DIM, **options)


def batch_of(number, tokens=40):
    rng = np.random.default_rng(number)
    return tf.constant(rng.normal(size=(tokens, DIM)), tf.float32), tf.constant(rng.integers(VOCAB, size=tokens))


@keras.saving.register_keras_serializable("vocabench.tests")
def given_loss(_, loss):
    return loss


def train(layer, optimizer, numbers):
    """Return the losses of steps of which every third re-organizes."""

    @tf.function
    def step(hidden, targets):
        with tf.GradientTape() as tape:
            loss = layer.training_loss(hidden, targets)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables, strict=True)
        )
        return loss

    losses = []
    for number in numbers:
        losses.append(float(step(*batch_of(number))))
        if number % 3 == 2:
            layer.reorganize(optimizer)
    return losses


def assert_equal_variables(one, other):
    for mine, its in zip(one.variables, other.variables, strict=True):
        assert np.array_equal(mine.numpy(), its.numpy()), mine.path


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_statistics_on_the_device_follow_their_definition(smoothing, dtype):
    counts_V = np.array([1000, 1, 7, 3, 20])
    weights, expected_VC = StatisticsWeights(counts_V, smoothing), np.zeros((5, 3))
    q, seen = tf.Variable(tf.zeros([5, 3], dtype)), tf.Variable(tf.zeros(5, tf.int64))
    rng = np.random.default_rng(0)
    for tokens in (9, 1, 4, 0):
        targets_N, log_NC = rng.integers(-1, 6, tokens), np.log(rng.dirichlet(np.ones(3), tokens))
        log_NC[(targets_N < 0) | (targets_N > 4)] = np.nan
        batch = weights.batch(targets_N)
        for index, word in enumerate(batch.words[batch.words < 5]):
            samples_NC = log_NC[targets_N == word] / np.log(2)
            expected_VC[word] = batch.keep[index] * expected_VC[word] + batch.share[index] * samples_NC.sum(axis=0)
        inputs = tf.constant(log_NC, tf.float32), tf.constant(targets_N, tf.int32)
        statistics.update(q, seen, *inputs, tf.constant(counts_V, tf.float32), smoothing)
    assert seen.numpy().tolist() == weights.seen_V.tolist()
    np.testing.assert_allclose(q, expected_VC, rtol=1e-5 if dtype == "float32" else 3e-3, atol=1e-5)


@pytest.mark.parametrize("how", ["eager", "graph", "xla", "fit"])
def test_a_training_loss_is_what_a_call_returns_and_records_the_batch_without_padding(how):
    layer, expected = layer_of(projection="none"), layer_of(projection="none")
    hidden, targets = batch_of(0)
    expected.observe(expected.cluster_log_probs(hidden[:30]), targets[:30])
    targets = tf.concat([targets[:30], tf.fill([10], tf.constant(7, tf.int64))], axis=0)
    hidden = tf.where((tf.range(40) < 30)[:, None], hidden, np.nan)
    options = {"ignore_index": 7, "label_smoothing": 0.1, "reduction": "sum"}
    if how == "fit":
        words, vectors = keras.Input((), dtype="int64"), keras.Input((DIM,))
        model = keras.Model([vectors, words], layer(vectors, words, ignore_index=7))
        model.compile("sgd", loss=lambda _, loss: 0 * loss)
        silent: Any = 0
        model.fit([hidden, targets], np.zeros(40), batch_size=40, verbose=silent)
    else:
        compiled = {"graph": False, "xla": True}
        record = tf.function(layer.training_loss, jit_compile=compiled[how]) if how in compiled else layer.training_loss
        loss = record(hidden, targets, **options)
        assert np.allclose(loss, layer(hidden, targets, **options), rtol=1e-5)
    layer(hidden, targets, ignore_index=7)
    seen_V = np.bincount(targets[:30], minlength=VOCAB)
    seen_V[7] = 0
    assert layer.seen.numpy().tolist() == seen_V.tolist()
    kept_V = np.arange(VOCAB) != 7
    np.testing.assert_allclose(layer.statistics[kept_V], expected.statistics[kept_V], rtol=1e-5, atol=1e-6)
    assert not layer.statistics[7].numpy().any()


@pytest.mark.parametrize("method", ["full_softmax", "huffman", "class_hsm", "nce"])
def test_the_training_loss_of_other_layers_is_what_a_call_returns(method):
    layer = layer_of(method)
    extra = {name: tf.constant(ids) for name, ids in layer.spec.draw_extra(np.random.default_rng(0)).items()}
    batch = batch_of(0)
    assert float(layer.training_loss(*batch, **extra)) == float(layer(*batch, **extra))


@pytest.mark.lengthy
@pytest.mark.parametrize("optimizer_of", [keras.optimizers.Adam, keras.optimizers.SGD])
def test_a_loaded_layer_trains_and_reorganizes_as_the_unbroken_one(optimizer_of, tmp_path):
    def model_of(layer):
        hidden, targets = keras.Input((DIM,)), keras.Input((), dtype="int64")
        model = keras.Model([hidden, targets], layer(hidden, targets))
        model.compile(optimizer_of(0.05), loss=given_loss)
        return model

    whole, model = layer_of(), model_of(layer_of())
    whole_optimizer = optimizer_of(0.05)
    losses = train(whole, whole_optimizer, range(8))
    assert train(model.layers[-1], model.optimizer, range(4)) == losses[:4]
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.models.load_model(tmp_path / "model.keras")
    assert train(loaded.layers[-1], loaded.optimizer, range(4, 8)) == losses[4:]
    assert_equal_variables(whole, loaded.layers[-1])
    for mine, its in zip(whole_optimizer.variables, loaded.optimizer.variables, strict=True):
        assert np.array_equal(mine, its), mine.path
    assert int(whole.reorganizations) == 2
    assert np.any(whole.cluster != layer_of().cluster)


def test_loaded_weights_reorganize_as_the_saved_ones():
    layer, other, saved = layer_of(), layer_of(seed=1), {}
    train(layer, keras.optimizers.SGD(0.1), range(5))
    layer.save_own_variables(saved)
    other.load_own_variables(saved)
    assert np.array_equal(layer.reorganize(seed=3)[1], other.reorganize(seed=3)[1])
    assert_equal_variables(layer, other)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_optimizers_state_moves_with_its_words(scaled):
    layer = layer_of(bias=True)
    optimizer = keras.optimizers.Adam(0.05, amsgrad=True, use_ema=True)
    train(layer, optimizer, range(2))
    kept = [optimizer._momentums, optimizer._velocities, optimizer._velocity_hats]
    kept.append(optimizer._model_variables_moving_average)
    places = [index for index, weight in enumerate(layer.trainable_weights) if weight.name.startswith("word_")]
    assert [layer.trainable_weights[place].name for place in places] == ["word_projection", "word_weight", "word_bias"]

    def by_word():
        return [
            layer.to_canonical({layer.trainable_weights[place].name: tf.convert_to_tensor(states[place].value)})
            for states in kept
            for place in places
        ]

    before, hidden = by_word(), batch_of(5)
    log_probs = layer.target_log_probs(*hidden)
    before_V, after_V = layer.reorganize(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer)
    assert (before_V != after_V).any()
    for one, other in zip(before, by_word(), strict=True):
        assert all(np.array_equal(value, other[name]) for name, value in one.items())
    assert not np.array_equal(layer.target_log_probs(*hidden), log_probs)


def test_layers_without_clusters_refuse_to_reorganize():
    for layer in (layer_of("huffman"), layer_of(interval=0)):
        with pytest.raises(BadInput, match=r"reorganize of .*: allowed: layers of sohsm with an interval"):
            layer.reorganize()
    with pytest.raises(BadInput, match="optimizer is a str: allowed: a Keras optimizer"):
        layer_of().reorganize("adam")


@pytest.mark.parametrize("vocab", [VOCAB - 9, VOCAB + 9])
def test_a_resized_layer_keeps_present_clusters_and_words_and_reorganizes_again(vocab):
    layer = layer_of()
    train(layer, keras.optimizers.Adam(0.05), range(3))
    kept = min(vocab, VOCAB)
    resized = layer.resize(np.arange(vocab, 0, -1))
    weights = [made.to_canonical(made.named_weights())["word_weight"] for made in (layer, resized)]
    assert np.array_equal(weights[0][:kept], weights[1][:kept])
    assert np.mean(layer.cluster[:kept] == resized.cluster[:kept]) > 0.8
    assert resized.reorganizes
    assert np.isfinite(resized.training_loss(tf.ones([4, DIM]), tf.fill([4], vocab - 1)))


@pytest.mark.parametrize("method", registry.methods("tensorflow"))
def test_a_layer_of_the_same_counts_stays_the_same_and_a_larger_one_is_a_distribution(method):
    layer = layer_of(method)
    initial = layer.spec.initial_parameters()
    rng = np.random.default_rng(1)
    layer.load_canonical({name: tf.constant(rng.normal(size=value.shape) / 4) for name, value in initial.items()})
    hidden = batch_of(0, 4)[0]
    assert np.array_equal(layer.resize(COUNTS).log_probs(hidden), layer.log_probs(hidden))
    log_probs = layer.resize(np.arange(VOCAB + 9, 0, -1)).log_probs(hidden)
    assert log_probs.shape == (4, VOCAB + 9)
    np.testing.assert_allclose(tf.reduce_sum(tf.exp(log_probs), axis=1), 1, rtol=1e-5)


def test_factors_of_an_optimizers_state_are_refused():
    layer, optimizer = layer_of(), keras.optimizers.Adafactor(0.1)
    train(layer, optimizer, range(2))
    before = layer.cluster.numpy().copy()
    with pytest.raises(BadInput, match=r"^reorganize: the optimizer's state of word_weight has shape .*: allowed: "):
        layer.reorganize(optimizer)
    assert np.array_equal(layer.cluster, before)
