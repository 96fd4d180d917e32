"""TensorFlow's devices, precision and conversion from and to NumPy: the toolbox of the adapter and the models."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

# Both are read when TensorFlow and Keras are imported: log errors only, and run Keras on TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.on_tensorflow.layer import OutputLayer, Tensor, Tensors, on_gpu
from vocabench.impls.precision import Precise
from vocabench.impls.spec import Arrays, LayerSpec

tf.get_logger().setLevel("ERROR")

if keras.backend.backend() != "tensorflow":
    raise BadInput(f"Keras was imported with backend {keras.backend.backend()!r}: allowed: KERAS_BACKEND=tensorflow")

for _device in tf.config.list_physical_devices("GPU"):
    # Otherwise the first program reserves the whole card, and peak memory cannot be told from reserved memory.
    tf.config.experimental.set_memory_growth(_device, True)


def devices() -> list[str]:
    return ["cpu", *(f"cuda:{number}" for number in range(len(tf.config.list_physical_devices("GPU"))))]


def details(device: str) -> dict[str, Any]:
    found = tf.config.list_physical_devices("GPU")[int(device.partition(":")[2] or 0)]
    return tf.config.experimental.get_devicedetails(found)


def check_device(device: str) -> str:
    """TensorFlow's own name of a device."""
    known = devices()
    if device not in known and not (device == "cuda" and len(known) > 1):
        raise unknown("device of tensorflow", device, known)
    return "/CPU:0" if device == "cpu" else f"/GPU:{device.partition(':')[2] or 0}"


def precision(dtype: str, device: str) -> AbstractContextManager[object]:
    """On a CUDA device, float32 products are TF32's in `tf32` and never else; by itself TensorFlow takes TF32."""
    return _NOTHING if device == "/CPU:0" else _switched(dtype)


_NOTHING = nullcontext()  # one for all: to make one each time shows in the time of a row


@contextmanager
def _switched(dtype: str) -> Iterator[None]:
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        tf.config.experimental.enable_tensor_float_32_execution(dtype == "tf32")
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def native(spec: LayerSpec) -> OutputLayer:
    """The method's Keras layer with its initial weights, for use in a model of one's own."""
    layer: OutputLayer = importlib.import_module(f"vocabench.impls.on_tensorflow.methods.{spec.method}").LAYER(spec)
    layer.load_canonical({name: tf.constant(value) for name, value in spec.initial_parameters().items()})
    return layer


def extra_on(device: str, extra: Arrays) -> Tensors:
    """The loss's random inputs."""
    with tf.device(device):
        return {name: tf.constant(array, _kind_of(array)) for name, array in extra.items()}


def extra_signature(spec: LayerSpec) -> Tensors:
    """What the loss's random inputs are in each step of a model that knows the words before, whatever their sizes."""
    drawn = spec.draw_extra(np.random.default_rng(0), np.zeros(1, np.int64))
    return {name: tf.TensorSpec([None], _kind_of(array)) for name, array in drawn.items()}


def _kind_of(array: NDArray) -> tf.DType:
    """Ids are narrowed; numbers are cast only where they are read."""
    return tf.int32 if array.dtype.kind == "i" else tf.float64


def to_numpy(tensor: Tensor) -> NDArray:
    """On the host, with bfloat16 as float32."""
    return np.array(tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor)


class Switched(Precise):
    """A layer or network of ours, under `precision` when it is called."""

    spec: LayerSpec
    device: str

    def precision(self) -> AbstractContextManager[object]:
        return precision(self.spec.dtype, self.device)


def wait(results: object) -> None:
    """Until the devices have made `results`. A CPU has when a call returns; to ask takes 0.1 ms."""
    if on_gpu():
        tf.test.experimental.sync_devices()
