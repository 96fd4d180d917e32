"""TensorFlow's variables are read without copies."""

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.models.bag_model import BagModelConfig
from vocabench.impls.models.language_model import LanguageModelConfig
from vocabench.impls.optimizers import Optimizer

if "tensorflow" not in registry.installed_frameworks():
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

from vocabench.impls.on_tensorflow.adapter import tf
from vocabench.impls.on_tensorflow.ops.tensors import look_up


def _is_copied(variable):
    """Return whether each reader of the whole variable gets a copy."""
    first, second = (tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype) for _ in range(2))
    places = [np.frombuffer(memoryview(tensor), np.uint8).ctypes.data for tensor in (first, second)]
    return places[0] != places[1]


def test_looking_up_rows_of_a_variable_does_not_copy_it():
    table, ids = tf.Variable(tf.random.stateless_normal([64, 16], (0, 1))), tf.constant([3, 3, 7])
    assert np.array_equal(look_up(table, ids), table.numpy()[[3, 3, 7]])
    assert not _is_copied(table)
    tf.gather(table, ids)
    assert _is_copied(table), "look_up would not be necessary"


@pytest.mark.parametrize("method", ["full_softmax", "sohsm"])
def test_training_a_language_model_copies_no_variable(method):
    spec = layers.spec(method, counts=zipf_counts(60), dim=8)
    model = layers.create_network("tensorflow", spec, LanguageModelConfig(8, 8, Optimizer(weight_decay=0.01)))
    ids_BT = np.arange(12).reshape(3, 4)
    for _ in range(2):
        model.step(ids_BT, ids_BT + 1, carry=True)
    model.evaluate(ids_BT, ids_BT + 1, carry=True)
    assert not [name for name, variable in model._variables().items() if _is_copied(variable)]


def test_training_a_bag_model_copies_no_variable():
    spec = layers.spec("full_softmax", counts=zipf_counts(60), dim=8)
    model = layers.create_network("tensorflow", spec, BagModelConfig(inputs=31, optimizer=Optimizer()))
    model.step(np.arange(12).reshape(3, 4), np.arange(3))
    assert not [name for name, variable in model._variables().items() if _is_copied(variable)]
