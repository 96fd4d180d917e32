"""Embeddings whose vectors TensorFlow's layers share."""

import copy
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
from vocabench.impls.tying import tied_name

VOCAB, DIM = 60, 16
COUNTS = np.arange(VOCAB, 0, -1)
SHAPES = {
    method: vocabench.spec(method, counts=COUNTS, dim=DIM).parameter_shapes()
    for method in registry.methods("tensorflow")
}
TIEABLE = [
    method for method, shapes in SHAPES.items() if (VOCAB, DIM) in (shapes.get("weight"), shapes.get("word_weight"))
]


def layer_of(method: str) -> Any:
    return vocabench.tensorflow.layer(method, counts=COUNTS, dim=DIM)


def embedding_of(vocab: int = VOCAB, **options) -> Any:
    return keras.layers.Embedding(vocab, DIM, **options)


def batch(seed=0):
    rng = np.random.default_rng(seed)
    return tf.constant(rng.integers(0, VOCAB, 24)), tf.constant(rng.integers(0, VOCAB, 24))


def extra_of(layer):
    return {name: tf.constant(ids) for name, ids in layer.spec.draw_extra(np.random.default_rng(0)).items()}


def words_of(layer):
    """Return the (V, D) word vectors of a layer in the order of the words."""
    return layer.to_canonical(layer.named_weights())[tied_name(layer.spec)]


def step(layer, embedding, optimizer, seed):
    """Train on one batch; the embedding is the model below the layer. Return the gradients by variable."""
    words, targets = batch(seed)
    variables = list({id(v): v for v in [*embedding.trainable_variables, *layer.trainable_variables]}.values())
    with tf.GradientTape() as tape:
        loss = layer.training_loss(embedding(words), targets, **extra_of(layer))
    gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return {variable.path: gradient for variable, gradient in zip(variables, gradients, strict=True)}


@pytest.mark.parametrize("method", TIEABLE)
def test_a_tied_layer_takes_over_the_vectors_and_gradients_of_both_uses_add_up(method):
    tied, apart, embedding, other = (
        layer_of(method),
        layer_of(method),
        *(embedding_of() for _ in "ab"),
    )
    tied.tie(embedding)
    before = embedding.embeddings.numpy()
    assert np.array_equal(words_of(tied), before)
    apart.load_canonical(tied.to_canonical(tied.named_weights()))
    other.build()
    other.embeddings.assign(before)
    hidden, targets = tf.ones([5, DIM]), tf.range(5)
    assert float(tied(hidden, targets, **extra_of(tied))) == float(apart(hidden, targets, **extra_of(tied)))
    for mine, its in zip(tied.topk(hidden, 5), apart.topk(hidden, 5), strict=True):
        assert np.allclose(mine, its, rtol=1e-5)
    assert len(tied.trainable_variables) == len(apart.trainable_variables) - len(tied._word_slots()) + 1

    sum_of_both = step(tied, embedding, keras.optimizers.SGD(0.1), 0)[embedding.embeddings.path]
    untied = step(apart, other, keras.optimizers.SGD(0.1), 0)
    own = {name: untied[getattr(apart, name).path] for name in apart.inner_shapes()}
    expected = untied[other.embeddings.path] + apart.to_canonical(own)[tied_name(apart.spec)]
    assert np.allclose(sum_of_both, expected, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(embedding.embeddings, before)
    assert np.array_equal(words_of(tied), embedding.embeddings)


def test_the_words_of_a_tied_layer_stay_tied_when_it_reorganizes():
    layer, embedding, optimizer = layer_of("sohsm"), embedding_of(), keras.optimizers.Adam(0.05)
    layer.tie(embedding)
    for seed in range(3):
        step(layer, embedding, optimizer, seed)
    before = embedding.embeddings.numpy()
    before_V, after_V = layer.reorganize(optimizer)
    assert (before_V != after_V).any()
    assert np.array_equal(embedding.embeddings, before)
    assert np.array_equal(words_of(layer), before)
    step(layer, embedding, optimizer, 3)
    assert np.array_equal(words_of(layer), embedding.embeddings)


@pytest.mark.parametrize("method", ["full_softmax", "class_hsm", "sohsm"])
@pytest.mark.parametrize("vocab", [VOCAB - 7, VOCAB + 9])
def test_resizing_moves_the_tie_to_the_new_layer(method, vocab):
    layer, embedding = layer_of(method), embedding_of()
    layer.tie(embedding)
    before, kept = embedding.embeddings.numpy(), min(vocab, VOCAB)
    resized = layer.resize(np.arange(vocab, 0, -1))
    assert resized.tied_words is embedding.embeddings
    assert embedding.embeddings.shape == (embedding.input_dim, DIM) == (vocab, DIM)
    assert len(embedding.variables) == 1
    assert np.array_equal(embedding.embeddings[:kept], before[:kept])
    assert np.array_equal(words_of(layer), before)
    words, targets = (ids % vocab for ids in batch())
    variables = [embedding.embeddings]
    with tf.GradientTape() as tape:
        loss = resized(embedding(words), targets)
    keras.optimizers.SGD(0.1).apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    assert not np.array_equal(embedding.embeddings[:kept], before[:kept])
    assert np.array_equal(words_of(resized), embedding.embeddings)


@pytest.mark.parametrize("method", ["full_softmax", "class_hsm", "sohsm"])
def test_a_saved_or_copied_model_stays_tied_and_its_layer_is_loaded_without_the_tie(method, tmp_path):
    layer, embedding = layer_of(method), embedding_of()
    layer.tie(embedding)
    words, targets = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
    model = keras.Model([words, targets], layer(embedding(words), targets))
    assert len(model.trainable_variables) == len(layer.trainable_variables)
    model.save(tmp_path / "model.keras")
    others: Any = keras.models.load_model(tmp_path / "model.keras"), copy.deepcopy(model)
    for other in others:
        assert float(other(batch())) == float(model(batch()))
        other_layer, other_embedding = (
            next(part for part in other.layers if isinstance(part, kind)) for kind in (type(layer), type(embedding))
        )
        assert other_layer.tied_words is other_embedding.embeddings is not embedding.embeddings
        assert np.array_equal(other_embedding.embeddings, embedding.embeddings)

    saved, alone = {}, layer_of(method)
    layer.save_own_variables(saved)
    alone.load_own_variables(saved)
    assert np.array_equal(words_of(alone), embedding.embeddings)
    assert alone.tied_words is None


def test_embeddings_that_do_not_fit_are_refused():
    layer = layer_of("sohsm")
    for wrong, message in (
        (embedding_of(VOCAB + 1), r"embedding has shape \(61, 16\): allowed: \(60, 16\)"),
        (embedding_of(dtype="float64"), "embedding is float64: allowed: one variable in float32"),
        (embedding_of(lora_rank=2), "embedding is computed from several variables: allowed: one"),
        (keras.layers.Dense(DIM), "embedding is a Dense: allowed: a keras.layers.Embedding"),
    ):
        with pytest.raises(BadInput, match=message):
            layer.tie(wrong)
    layer.tie(embedding_of())
    with pytest.raises(BadInput, match="tie of sohsm: allowed: once"):
        layer.tie(embedding_of())


@pytest.mark.parametrize("method", [method for method in SHAPES if method not in TIEABLE])
def test_methods_without_a_vector_of_each_word_refuse_to_be_tied(method):
    with pytest.raises(BadInput, match=f"tie of {method}: allowed: methods with a"):
        layer_of(method).tie(embedding_of())


@pytest.mark.parametrize("method", ["full_softmax", "class_hsm", "sohsm"])
def test_the_clones_of_a_tied_layer_and_its_embedding_are_tied_again(method):
    layer, embedding = layer_of(method), embedding_of()
    layer.tie(embedding)
    words, targets = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
    clone: Any = keras.models.clone_model(keras.Model([words, targets], layer(embedding(words), targets)))
    cloned, below = (next(p for p in clone.layers if isinstance(p, kind)) for kind in (type(layer), type(embedding)))
    cloned.tie(below)
    assert cloned.tied_words is below.embeddings
    assert len(clone.trainable_variables) == len(layer.trainable_variables)
    assert np.array_equal(words_of(cloned), below.embeddings)
    assert np.isfinite(float(clone(batch())))
