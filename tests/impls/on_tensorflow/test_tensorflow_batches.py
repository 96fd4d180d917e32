"""Batches whose size is not known while a function is traced."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from vocabench.harness import layers, registry

pytestmark = pytest.mark.many_cells

if "tensorflow" not in registry.installed_frameworks():
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

from vocabench.impls.on_tensorflow import adapter
from vocabench.impls.on_tensorflow.adapter import tf

VOCAB, DIM, SIZES = 60, 8, (0, 1, 7)
METHODS = registry.methods("tensorflow")
SERVED_METHODS = ["fused_softmax", "class_hsm", "sohsm"]
ANY_BATCH = tf.TensorSpec([None, DIM]), tf.TensorSpec([None], tf.int32)


def layers_of(method):
    """Return a layer in each of its forms."""
    spec = layers.spec(method, counts=np.arange(VOCAB, 0, -1) ** 2, dim=DIM, dtype="float32")
    return [adapter.native(dataclasses.replace(spec, form=form.id)) for form in adapter.forms(spec)] or [
        adapter.native(spec)
    ]


def batch(tokens):
    rng = np.random.default_rng(3)
    return tf.constant(rng.normal(size=(tokens, DIM)), tf.float32), tf.constant(
        rng.integers(VOCAB, size=tokens), tf.int32
    )


def loss_of(layer):
    """Return a function of a batch that computes the loss and its gradients."""
    extra = {name: tf.constant(ids) for name, ids in layer.spec.draw_extra(np.random.default_rng(0)).items()}

    def loss_and_gradients(hidden, targets):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = layer(hidden, targets, **extra)
        gradients = tape.gradient(loss, [hidden, *layer.trainable_variables])
        return loss, *(tf.convert_to_tensor(gradient) for gradient in gradients)

    return loss_and_gradients


def decode_of(layer):
    return lambda hidden: layer.topk(hidden, 5)


@pytest.mark.many_cells
@pytest.mark.parametrize("method", METHODS)
def test_one_trace_takes_batches_of_any_size(method):
    for layer in layers_of(method):
        for call, inputs in ((loss_of(layer), 2), (decode_of(layer), 1)):
            traced = tf.function(call, input_signature=ANY_BATCH[:inputs], autograph=False)
            for tokens in SIZES:
                arrays = batch(tokens)[:inputs]
                for got, expected in zip(traced(*arrays), call(*arrays), strict=True):
                    assert got.shape == expected.shape
                    assert np.allclose(got, expected, rtol=1e-4, atol=1e-5), (layer.form, tokens)


SERVED = """
import sys
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
arrays = np.load(sys.argv[2])
results = {}
for tokens in ("0", "1", "7"):
    hidden, targets = tf.constant(arrays["hidden" + tokens]), tf.constant(arrays["targets" + tokens])
    for name in sys.argv[4:]:
        results[f"{name} loss {tokens}"] = getattr(model, name).loss(hidden, targets)
        results[f"{name} values {tokens}"], results[f"{name} ids {tokens}"] = getattr(model, name).topk(hidden)
np.savez(sys.argv[3], **results)
"""


@pytest.mark.lengthy
def test_saved_models_are_served_with_batches_of_any_size(tmp_path):
    model, made = tf.Module(), {method: layers_of(method)[0] for method in SERVED_METHODS}
    for method, layer in made.items():
        module = tf.Module()
        module.layer = layer
        module.loss = tf.function(layer.training_loss, input_signature=ANY_BATCH)
        module.topk = tf.function(decode_of(layer), input_signature=ANY_BATCH[:1])
        setattr(model, method, module)
    tf.saved_model.save(model, tmp_path / "saved")
    arrays = {}
    for tokens in SIZES:
        arrays[f"hidden{tokens}"], arrays[f"targets{tokens}"] = batch(tokens)
    np.savez(tmp_path / "inputs.npz", **arrays)
    paths = [str(tmp_path / name) for name in ("saved", "inputs.npz", "results.npz")]
    done = subprocess.run([sys.executable, "-c", SERVED, *paths, *made], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    results = np.load(paths[2])
    for method, layer in made.items():
        for tokens in SIZES:
            hidden, targets = batch(tokens)
            expected = layer(hidden, targets), *layer.topk(hidden, 5)
            for name, value in zip(("loss", "values", "ids"), expected, strict=True):
                got = results[f"{method} {name} {tokens}"]
                assert np.allclose(got, value, rtol=1e-4, atol=1e-5), (method, name, tokens)
