"""The LSTM loop for CPUs agrees with Keras's LSTM, which TensorFlow's networks use on accelerators."""

import numpy as np
import pytest

from vocabench.harness import registry

if "tensorflow" not in registry.installed_frameworks():
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

from vocabench.impls.on_tensorflow.adapter import tf
from vocabench.impls.on_tensorflow.models._lstm import LSTM


@pytest.mark.parametrize("lengths", [[6, 1, 4], [1, 1, 1]])
def test_the_loop_agrees_with_kerass_lstm(lengths):
    rng = np.random.default_rng(0)
    steps = max(lengths)
    layers = [LSTM("lstm", 5, 4, "float64", on_cpu=on_cpu) for on_cpu in (True, False)]
    for name, variable in layers[0].variables().items():
        value = rng.normal(size=variable.numpy().shape)
        for layer in layers:
            layer.variables()[name].assign(value)
    real_BT = np.arange(steps) < np.array(lengths)[:, None]
    inputs_BTE, start = rng.normal(size=(3, steps, 5)), rng.normal(size=(2, 3, 4))
    weight_BTH, weight = rng.normal(size=(3, steps, 4)) * real_BT[:, :, None], rng.normal(size=(2, 3, 4))

    def run(layer):
        watched = {"inputs": tf.constant(inputs_BTE), "start": tf.constant(start), **layer.variables()}
        with tf.GradientTape() as tape:
            tape.watch(watched)
            states_BTH, final = layer(watched["inputs"], tf.constant(real_BT), tf.unstack(watched["start"]))
            total = tf.reduce_sum(states_BTH * weight_BTH) + tf.reduce_sum(tf.stack(final) * weight)
        return {"states": states_BTH[real_BT], "final": tf.stack(final), **tape.gradient(total, watched)}

    ours, kerass = (run(layer) for layer in layers)
    for name, value in kerass.items():
        np.testing.assert_allclose(ours[name], value, atol=1e-12, err_msg=name)
