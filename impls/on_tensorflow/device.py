"""Devices and precision of TensorFlow, and arrays on their way to a device and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, on_gpu
from vocabench.impls.precision import Precise
from vocabench.impls.spec import Arrays, LayerSpec

tf.get_logger().setLevel("ERROR")

if keras.backend.backend() != "tensorflow":
    raise BadInput(f"Keras was imported with backend {keras.backend.backend()!r}: allowed: KERAS_BACKEND=tensorflow")

for _device in tf.config.list_physical_devices("GPU"):
    # Otherwise the first program reserves the whole card, and peak memory cannot be told from reserved memory.
    tf.config.experimental.set_memory_growth(_device, True)

_NO_SWITCH = nullcontext()  # shared, because creating one for each call shows in the time of small batches


def devices() -> list[str]:
    """Return the devices that TensorFlow can use here, "cpu" first."""
    return ["cpu", *(f"cuda:{number}" for number in range(len(tf.config.list_physical_devices("GPU"))))]


def details(device: str) -> dict[str, Any]:
    """Return TensorFlow's description of a CUDA device."""
    gpu = tf.config.list_physical_devices("GPU")[int(device.partition(":")[2] or 0)]
    return tf.config.experimental.get_device_details(gpu)


def check_device(device: str) -> str:
    """Return TensorFlow's own name of a device.

    Raises:
        BadInput: There is no such device here.
    """
    known = devices()
    if device not in known and not (device == "cuda" and len(known) > 1):
        raise unknown("device of tensorflow", device, known)
    return "/CPU:0" if device == "cpu" else f"/GPU:{device.partition(':')[2] or 0}"


def precision(dtype: str, device: str) -> AbstractContextManager[object]:
    """Compute float32 products in TF32 for `tf32` and in float32 otherwise, on a CUDA device.

    TensorFlow's default is TF32.
    """
    return _NO_SWITCH if device == "/CPU:0" else _switched(dtype)


@contextmanager
def _switched(dtype: str) -> Iterator[None]:
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        tf.config.experimental.enable_tensor_float_32_execution(dtype == "tf32")
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


class Switched(Precise):
    """A layer or network of ours whose calls run under `precision`."""

    spec: LayerSpec
    device: str

    def precision(self) -> AbstractContextManager[object]:
        return precision(self.spec.dtype, self.device)


def wait(results: object) -> None:
    """Wait until the devices have computed `results`.

    On a CPU they are complete when a call returns, and asking TensorFlow would take 0.1 ms.
    """
    if on_gpu():
        tf.test.experimental.sync_devices()


def extra_on(device: str, extra: Arrays) -> Tensors:
    """Return the random inputs of a loss on the device."""
    with tf.device(device):
        return {name: tf.constant(array, _dtype_of(array)) for name, array in extra.items()}


def extra_signature(spec: LayerSpec) -> Tensors:
    """Return a signature of the loss's random inputs that fits every step of a network, whatever their sizes."""
    drawn = spec.draw_extra(np.random.default_rng(0), np.zeros(1, np.int64), tokens=1)
    return {name: tf.TensorSpec([None] * array.ndim, _dtype_of(array)) for name, array in drawn.items()}


def _dtype_of(array: NDArray) -> tf.DType:
    """Return int32 for ids, and float64 for other values, which are cast only where they are read."""
    return tf.int32 if array.dtype.kind == "i" else tf.float64


def to_numpy(tensor: Tensor) -> NDArray:
    """Return a tensor on the host, with bfloat16 converted to float32."""
    return np.array(tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor)
