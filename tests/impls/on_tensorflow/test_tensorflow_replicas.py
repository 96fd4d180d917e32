"""Training in the replicas of a `MirroredStrategy`, in a process of its own with two logical CPUs."""

import subprocess
import sys

import numpy as np
import pytest

from vocabench.harness import registry

if "tensorflow" not in registry.installed_frameworks():
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

METHODS = ["fused_softmax", "class_hsm", "huffman", "sohsm", "tied sohsm"]
# Trains each method on whole batches, and in two replicas on unequal parts of the same batches, and saves its losses
# and variables. Gradients of the embedding have few rows.
TRAINED = """
import sys
import numpy as np, tensorflow as tf
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
import keras, vocabench.tensorflow

VOCAB, DIM, TOKENS = 60, 8, 40
counts = np.arange(VOCAB, 0, -1) ** 2
strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])

def trained(method, scope, run):
    with scope:
        layer = vocabench.tensorflow.layer(method.split()[-1], counts=counts, dim=DIM)
        normal = keras.initializers.RandomNormal(0, 1, seed=0)
        embedding = keras.layers.Embedding(VOCAB, DIM, embeddings_initializer=normal)
        embedding.build()
        if method.startswith("tied"):
            layer.tie(embedding)
        variables = layer.trainable_variables + ([] if layer.tied_words is not None else embedding.trainable_variables)
        optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
        optimizer.build(variables)
    extra = {name: tf.constant(ids) for name, ids in layer.spec.draw_extra(np.random.default_rng(0)).items()}

    def step(words, targets):
        with tf.GradientTape() as tape:
            loss = layer.training_loss(embedding(words), targets, reduction="sum", **extra) / TOKENS
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    losses = []
    step_of_all = tf.function(lambda words, targets: run(step, words, targets))
    for number in range(3):
        rng = np.random.default_rng(number)
        losses.append(float(step_of_all(*(tf.constant(rng.integers(VOCAB, size=TOKENS)) for _ in range(2)))))
        if number == 1 and layer.reorganizes:
            before_V, after_V = layer.reorganize(optimizer)
            assert (before_V != after_V).any()
    kept = {"losses": losses} | {variable.name: variable for variable in variables}
    if layer.reorganizes:
        kept |= {"seen": layer.seen, "cluster": layer.cluster, "statistics": layer.statistics}
        parts = strategy.experimental_local_results(layer.statistics)
        assert all(np.array_equal(part, parts[0]) for part in parts)
    return {name: np.array(tf.convert_to_tensor(value)) for name, value in kept.items()}

def in_replicas(step, *arrays):
    def own(array):
        parts = array[:13], array[13:]
        return strategy.experimental_distribute_values_from_function(lambda c: parts[c.replica_id_in_sync_group])
    return strategy.reduce("SUM", strategy.run(step, [own(array) for array in arrays]), axis=None)

for method in sys.argv[2:]:
    one = trained(method, tf.device("/cpu:0"), lambda step, *arrays: step(*arrays))
    two = trained(method, strategy.scope(), in_replicas)
    for name in one:
        np.savez(f"{sys.argv[1]}/{method} {name}", one[name], two[name])
"""


@pytest.mark.lengthy
def test_two_replicas_train_as_one_on_the_joined_batch(tmp_path):
    command = [sys.executable, "-c", TRAINED, str(tmp_path), *METHODS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    compared = sorted(tmp_path.iterdir())
    assert {path.stem for path in compared} >= {f"{method} losses" for method in METHODS} | {"sohsm statistics"}
    for path in compared:
        with np.load(path) as arrays:
            one, two = arrays.values()
        np.testing.assert_allclose(two, one, rtol=1e-3, atol=2e-5, err_msg=path.stem)
