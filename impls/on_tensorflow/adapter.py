"""The adapter of TensorFlow, as `impls/adapter.py` describes it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from vocabench.impls import cpp
from vocabench.impls.contract import Layer
from vocabench.impls.forms import CPU, Form, kind_of, on_device
from vocabench.impls.models.network import Config, Network, network_class
from vocabench.impls.on_tensorflow.contract_layer import TensorFlowLayer
from vocabench.impls.on_tensorflow.device import check_device, details, devices, precision, wait
from vocabench.impls.on_tensorflow.native import layer_class, native
from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.ops.tensors import traced
from vocabench.impls.spec import LayerSpec, storage

__all__ = [
    "DISTRIBUTION",
    "compute_capability",
    "counts_memory",
    "create_layer",
    "create_network",
    "describe",
    "devices",
    "forms",
    "native",
    "parallel",
    "peak_counted_bytes",
    "prepare_add",
    "prepare_process",
    "prepare_product",
]

DISTRIBUTION = "tensorflow"


def prepare_process() -> None:
    """Do nothing: TensorFlow's threads flush denormal numbers to zero by default."""


def describe(device: str, dtype: str = "float32") -> dict[str, str]:
    """Return the versions and settings that a row of this device and precision keeps as provenance."""
    facts = {"tensorflow": tf.__version__, "keras": keras.__version__}
    if kind_of(device) == CPU:
        return facts | {
            "threads": str(cpp_kernels.threads()),
            "device_name": platform.processor() or platform.machine(),
            "compiler": cpp.version(cpp_kernels.interface()),
        }
    build = tf.sysconfig.get_build_info()
    with precision(dtype, check_device(device)):
        return facts | {
            "device_name": str(details(device).get("device_name", "")),
            "cuda": str(build.get("cuda_version", "")),
            "cudnn": str(build.get("cudnn_version", "")),
            "tf32": str(tf.config.experimental.tensor_float_32_execution_enabled()),
        }


def compute_capability(device: str) -> tuple[int, int]:
    """Return the compute capability of a CUDA device, or (0, 0) for any other device."""
    return (0, 0) if check_device(device) == "/CPU:0" else details(device).get("compute_capability", (0, 0))


def forms(spec: LayerSpec, device: str = "cpu") -> tuple[Form, ...]:
    """Return the forms of the layer on `device`, the preferred one first; empty where there is only one way."""
    return on_device(layer_class(spec.method).forms(spec), device)


def create_layer(spec: LayerSpec, device: str = "cpu") -> Layer:
    """Create the layer of `spec` behind the NumPy contract."""
    return TensorFlowLayer(spec, check_device(device))


def create_network(spec: LayerSpec, config: Config, device: str = "cpu") -> Network[Any]:
    """Create the network of `config` with the output layer of `spec`."""
    return network_class("tensorflow", config)(spec, config, check_device(device))


def parallel() -> None:
    """Return None: there are no layers whose words are split."""


def prepare_product(size: int, device: str, dtype: str) -> Callable[[], object]:
    """Return a function that multiplies two (size, size) matrices once and waits for the result.

    It computes the product in the way that is fastest for the layers.
    """
    place = check_device(device)
    multiply = cpp_kernels.linear if device == "cpu" and cpp_kernels.known(dtype) else tf.matmul
    with tf.device(place):
        left, right = tf.unstack(tf.cast(tf.random.uniform([2, size, size]), storage(dtype)))
        product = traced(lambda: multiply(left, right))

    def run() -> None:
        with precision(dtype, place):
            wait(product())

    return run


def prepare_add(size: int, device: str) -> Callable[[], object]:
    """Return a function that adds one float32 array (size,) to another in place and waits for the result."""
    with tf.device(check_device(device)):
        total, summand = tf.Variable(tf.ones([size])), tf.ones([size])
    return lambda: wait(total.assign_add(summand, read_value=False))


def counts_memory(device: str) -> bool:
    """Return whether TensorFlow counts the memory that it uses on `device`.

    It does so on a GPU, and on a CPU where its allocator keeps freed memory, as with oneDNN.
    """
    try:
        tf.config.experimental.get_memory_info(check_device(device).removeprefix("/"))
    except ValueError:
        return False
    return True


def peak_counted_bytes(device: str, run: Callable[[], object]) -> int:
    """Return the most memory in use on `device` during `run`, above what was in use before."""
    name = check_device(device).removeprefix("/")
    tf.config.experimental.reset_memory_stats(name)
    before = tf.config.experimental.get_memory_info(name)["current"]
    run()
    return tf.config.experimental.get_memory_info(name)["peak"] - before
