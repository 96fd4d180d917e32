"""TensorFlow's layers as Keras objects: they are saved, loaded, cloned, copied, pickled and exported."""

import copy
import gc
import json
import pickle
import subprocess
import sys
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

VOCAB, DIM = 60, 16
COUNTS = np.arange(VOCAB, 0, -1)
METHODS = registry.methods("tensorflow")
# Loads saved models where neither this library nor its operations are known, and writes their results to files.
SERVER = """
import sys
import numpy as np, tensorflow as tf
assert "vocabench" not in sys.modules
hidden = tf.ones([8, 16])
for line in sys.stdin:
    model = tf.saved_model.load(line.strip())
    topk = hasattr(model, "topk")
    results = [model.loss(hidden, tf.range(8)), *model.topk(hidden)] if topk else [model.serve(hidden)]
    np.savez(line.strip() + ".npz", *[np.asarray(result) for result in results])
    print("SERVED", flush=True)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return a function of the folder of a saved model that returns its results from another process."""
    folder = tmp_path_factory.mktemp("server")
    with (folder / "errors").open("w") as errors:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert server.stdin is not None
    assert server.stdout is not None

    def results(path):
        print(path, file=server.stdin, flush=True)
        assert "SERVED\n" in iter(server.stdout.readline, ""), (folder / "errors").read_text()[-2000:]
        with np.load(f"{path}.npz") as members:
            return list(members.values())

    yield results
    server.kill()
    server.communicate()


def changed_layer(method, **options):
    """Return a layer whose weights are not the initial ones."""
    layer = vocabench.tensorflow.layer(method, counts=COUNTS, dim=DIM, **options)
    initial = layer.spec.initial_parameters()
    rng = np.random.default_rng(1)
    layer.load_canonical({name: tf.constant(rng.normal(size=value.shape) / 4) for name, value in initial.items()})
    return layer


def model_of(layer):
    hidden, targets = keras.Input((DIM,)), keras.Input((), dtype="int32")
    return keras.Model([hidden, targets], layer(hidden, targets))


def assert_same(one, other):
    assert one.spec == other.spec
    for name, value in one.named_weights().items():
        assert np.array_equal(value, other.named_weights()[name]), name
    for mine, its in zip(one.topk(tf.ones([3, DIM]), 5), other.topk(tf.ones([3, DIM]), 5), strict=True):
        assert np.array_equal(mine, its)


@pytest.mark.parametrize("method", METHODS)
def test_a_configuration_survives_json_and_gives_the_initial_layer(method):
    layer = vocabench.tensorflow.layer(method, counts=COUNTS, dim=DIM)
    config = json.loads(json.dumps(layer.get_config()))
    again = type(layer).from_config(config)
    assert_same(layer, again)
    assert again.name == layer.name


def test_a_configuration_holds_words():
    layer = vocabench.tensorflow.layer("cnn_softmax", counts=COUNTS, dim=DIM, words=[f"w{i}" for i in range(VOCAB)])
    again = type(layer).from_config(json.loads(json.dumps(layer.get_config())))
    assert again.spec.structure_digest == layer.spec.structure_digest


def test_a_configuration_holds_the_content_of_a_file(tmp_path):
    path = tmp_path / "vectors.npy"
    np.save(path, np.random.default_rng(0).normal(size=(VOCAB, 4)).astype(np.float32))
    layer = vocabench.tensorflow.layer("binary_tree", counts=COUNTS, dim=DIM, tree="adaptive", vectors=str(path))
    config = json.loads(json.dumps(layer.get_config()))
    path.unlink()
    assert type(layer).from_config(config).spec.structure_digest == layer.spec.structure_digest


@pytest.mark.parametrize("method", METHODS)
def test_copies_and_pickles_are_equal(method):
    layer = changed_layer(method)
    assert_same(layer, copy.deepcopy(layer))
    assert_same(layer, pickle.loads(pickle.dumps(layer)))


@pytest.mark.parametrize("method", METHODS)
def test_a_functional_model_is_saved_loaded_cloned_copied_and_pickled(method, tmp_path):
    model = model_of(changed_layer(method))
    model.save(tmp_path / "model.keras")
    others: Any = (
        keras.models.load_model(tmp_path / "model.keras"),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
    )
    for other in others:
        assert_same(model.layers[-1], other.layers[-1])
    assert keras.models.clone_model(model).layers[-1].spec == model.layers[-1].spec


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_weights_of_any_precision_are_saved(dtype, tmp_path):
    model = model_of(changed_layer("huffman", dtype=dtype))
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.models.load_model(tmp_path / "model.keras")
    assert_same(model.layers[-1], loaded.layers[-1])


@pytest.mark.filterwarnings("ignore:Skipping nested container")  # Keras looks elsewhere before it gives up
def test_weights_of_another_structure_are_refused_in_one_line(tmp_path):
    layer, saved = changed_layer("huffman"), {}
    layer.save_own_variables(saved)
    other = vocabench.tensorflow.layer("huffman", counts=COUNTS[::-1], dim=DIM)
    refusal = r"weights of huffman have structure_digest=.*: allowed: .*same counts"
    with pytest.raises(BadInput, match=refusal) as caught:
        other.load_own_variables(saved)
    assert "\n" not in str(caught.value)
    model_of(layer).save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match=refusal):
        model_of(other).load_weights(tmp_path / "model.weights.h5")
    initial = vocabench.tensorflow.layer("huffman", counts=COUNTS[::-1], dim=DIM)
    assert_same(initial, other)


def test_sohsm_takes_over_the_clusters_of_weights(tmp_path):
    layer, other = changed_layer("sohsm"), changed_layer("sohsm", seed=1)
    layer.training_loss(tf.random.stateless_normal([80, DIM], (0, 1)), tf.range(80) % VOCAB)
    layer.reorganize()
    assert not np.array_equal(layer.cluster, other.cluster)
    model_of(layer).save_weights(tmp_path / "model.weights.h5")
    model_of(other).load_weights(tmp_path / "model.weights.h5")
    assert np.array_equal(layer.cluster, other.cluster)
    assert np.array_equal(layer.log_probs(tf.ones([2, DIM])), other.log_probs(tf.ones([2, DIM])))


@pytest.mark.parametrize("cluster", [-1, 10**6])
def test_sohsm_refuses_weights_with_impossible_clusters(cluster):
    layer, saved = changed_layer("sohsm"), {}
    layer.save_own_variables(saved)
    saved = {name: np.asarray(value).copy() for name, value in saved.items()}
    saved["cluster"][3] = cluster
    with pytest.raises(BadInput, match="weights of sohsm have other clusters: allowed: up to"):
        layer.load_own_variables(saved)


@pytest.mark.lengthy
@pytest.mark.parametrize("method", METHODS)
def test_a_saved_model_is_served_without_this_library(method, tmp_path, served):
    layer = changed_layer(method)
    extra = {name: tf.constant(ids) for name, ids in layer.spec.draw_extra(np.random.default_rng(0)).items()}
    module = tf.Module()
    module.layer = layer
    hidden, targets = tf.TensorSpec([8, DIM]), tf.TensorSpec([8], tf.int32)
    module.loss = tf.function(lambda hidden, targets: layer(hidden, targets, **extra), [hidden, targets])
    module.topk = tf.function(lambda hidden: layer.topk(hidden, 5), [hidden])
    tf.saved_model.save(module, tmp_path / "saved")
    loss, values, ids = served(tmp_path / "saved")
    assert loss == pytest.approx(float(layer(tf.ones([8, DIM]), tf.range(8), **extra)), rel=1e-5)
    expected_values, expected_ids = layer.topk(tf.ones([8, DIM]), 5)
    assert np.allclose(values, expected_values, rtol=1e-5, atol=1e-5)
    assert np.array_equal(ids, expected_ids)


class Best(keras.layers.Layer):
    def __init__(self, output):
        super().__init__()
        self.output_layer = output

    def call(self, hidden):
        return self.output_layer.topk(hidden, 5)[0]


@pytest.mark.lengthy
@pytest.mark.parametrize("method", ["huffman", "sohsm", "adaptive_softmax"])
def test_a_model_that_keras_exports_is_served_without_this_library(method, tmp_path, served):
    layer = changed_layer(method)
    hidden = keras.Input((DIM,), batch_size=8)
    keras.Model(hidden, Best(layer)(hidden)).export(tmp_path / "exported", verbose=False)
    (values,) = served(tmp_path / "exported")
    assert np.allclose(values, layer.topk(tf.ones([8, DIM]), 5)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["huffman", "sohsm"])
def test_a_function_traced_in_the_portable_context_has_no_operations_of_this_library(method):
    layer = changed_layer(method)
    with vocabench.tensorflow.portable():
        graph = tf.function(layer.topk).get_concrete_function(tf.TensorSpec([8, DIM]), 5).graph
    names = [node.op for node in graph.as_graph_def().node]
    names += [node.op for function in graph.as_graph_def().library.function for node in function.node_def]
    assert not [name for name in names if "vocabench" in name.lower()]


@pytest.mark.lengthy
@pytest.mark.parametrize("method", ["sohsm", "class_hsm"])
def test_a_traced_layer_decodes_after_an_equal_one_was_deleted(method):
    """The graph of a step that both layers share was traced for the first one, whose variables are gone."""
    hidden = tf.ones([1, DIM], tf.float64)
    for _ in range(3):
        layer = vocabench.tensorflow.layer(method, counts=np.arange(306, 0, -1), dim=DIM, dtype="float64")
        ids = tf.function(layer.topk)(hidden, 2)[1]
        assert ids.numpy().tolist() == layer.topk(hidden, 2)[1].numpy().tolist()
        del layer
        gc.collect()
