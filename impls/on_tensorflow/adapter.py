"""The adapter that connects TensorFlow to the harness, and its layers behind the NumPy contract."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable
from functools import partial
from typing import Any

# isort: on
import keras
import tensorflow as tf
from numpy.typing import NDArray

from vocabench.impls import cpp
from vocabench.impls.contract import Job, Layer
from vocabench.impls.forms import Form, on_device
from vocabench.impls.models.network import Config, Network, network_class

# isort: off  (the device module sets what TensorFlow and Keras read when they are imported)
from vocabench.impls.on_tensorflow.device import (
    Switched,
    check_device,
    details,
    devices,
    extra_on,
    native,
    precision,
    to_numpy,
    wait,
)
from vocabench.impls.on_tensorflow.layer import OutputLayer, Reach, Tensor, Tensors, traced
from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.training import optimizers
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import Arrays, LayerSpec, storage

__all__ = ["devices", "native"]  # further names of the adapter that are defined in `device`

DISTRIBUTION = "tensorflow"  # the name under which pip installs the framework


def prepare_process() -> None:
    """Nothing to set before measuring: TensorFlow's threads flush denormal numbers to zero."""


def describe(device: str, dtype: str = "float32") -> dict[str, str]:
    """Versions and settings that a row of that precision keeps as provenance."""
    facts = {"tensorflow": tf.__version__, "keras": keras.__version__}
    if not device.startswith("cuda"):
        facts |= {"threads": str(cpp_kernels.threads()), "device_name": platform.processor() or platform.machine()}
        return facts | {"compiler": cpp.version()}
    build = tf.sysconfig.get_build_info()
    with precision(dtype, check_device(device)):
        return facts | {
            "device_name": str(details(device).get("device_name", "")),
            "cuda": str(build.get("cuda_version", "")),
            "cudnn": str(build.get("cudnn_version", "")),
            "tf32": str(tf.config.experimental.tensor_float_32_execution_enabled()),
        }


def compute_capability(device: str) -> tuple[int, int]:
    """Of a CUDA device; (0, 0) of any other."""
    return (0, 0) if check_device(device) == "/CPU:0" else details(device).get("compute_capability", (0, 0))


def prepare_product(size: int, device: str, dtype: str) -> Callable[[], object]:
    """A function that multiplies two matrices (size, size) once, as the fastest of the layers do, and waits until it is
    done."""
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
    """A function that adds one float32 array (size,) to another in place and waits until it is done."""
    with tf.device(check_device(device)):
        total, other = tf.Variable(tf.ones([size])), tf.ones([size])
    return lambda: wait(total.assign_add(other, read_value=False))


def counts_memory(device: str) -> bool:
    """Whether TensorFlow counts the memory that it takes there: on a GPU, and on a CPU where its allocator keeps what
    was freed, as it does with oneDNN."""
    try:
        tf.config.experimental.get_memory_info(check_device(device).removeprefix("/"))
    except ValueError:
        return False
    return True


def peak_counted_bytes(device: str, run: Callable[[], object]) -> int:
    """Most memory of a device in use during `run` above what was in use before."""
    name = check_device(device).removeprefix("/")
    tf.config.experimental.reset_memory_stats(name)
    before = tf.config.experimental.get_memory_info(name)["current"]
    run()
    return tf.config.experimental.get_memory_info(name)["peak"] - before


def forms(spec: LayerSpec, device: str = "cpu") -> tuple[Form, ...]:
    """Return the forms of the layer on `device`, the preferred one first; empty where there is only one way."""
    layer: type[OutputLayer] = importlib.import_module(f"vocabench.impls.on_tensorflow.methods.{spec.method}").LAYER
    return on_device(layer.forms(spec), device)


def create_layer(spec: LayerSpec, device: str = "cpu") -> Layer:
    return TensorFlowLayer(spec, check_device(device))


def create_network(spec: LayerSpec, config: Config, device: str = "cpu") -> Network[Any]:
    """Create the network of `config` with the output layer of `spec`."""
    return network_class("tensorflow", config)(spec, config, check_device(device))


class TensorFlowLayer(Switched, Layer):
    """Any native layer behind the NumPy contract. Every function is traced once a shape."""

    def __init__(self, spec: LayerSpec, device: str) -> None:
        super().__init__(spec)
        self.device, self.dtype = device, tf.as_dtype(spec.storage)
        with tf.device(device):
            self.native = layer = native(spec)
        self._by_rows: optimizers.Updates | None = None  # the last step's, where it is row-sparse
        compiled: dict[str, Any] = {"jit_compile": layer.jit_compile}
        self._loss_of = traced(lambda hidden, targets, extra: layer(hidden, targets, **extra), **compiled)
        self._grads_of = traced(self._gradients, **compiled)
        self._log_probs_of = traced(layer.log_probs, **compiled)
        self._target_log_probs_of = traced(layer.target_log_probs, **compiled)
        self._search_of, self._beam_of = self._as_called("search"), self._as_called("beam")
        self._sample_of = traced(layer.sample)

    def _as_called(self, name: str) -> Callable[..., Any]:
        """A function of the layer's, as TensorFlow is fastest to call it."""
        function: Callable[..., Any] = getattr(self.native, name)
        return function if name in self.native.one_operation else traced(function)

    def _gradients(self, hidden: Tensor, targets: Tensor, extra: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        return self._gradients_of(OutputLayer.reach(self.native, targets, **extra), hidden, {})

    def _gradients_of(self, reach: Reach, hidden: Tensor, tables: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """The loss, and its gradients by hidden and by each weight, of which only a table of rows may be read."""
        with tf.GradientTape() as tape:
            tape.watch((hidden, tables))
            loss = reach.loss(hidden, tables)
        sources = (hidden, {**self.native.named_weights(), **tables})
        grads: Any = tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return loss, *grads

    def _catch_up(self) -> None:
        if self._by_rows is not None:
            self._by_rows.catch_up()

    def parameters(self) -> Arrays:
        self._catch_up()
        tensors = {name: tf.convert_to_tensor(value) for name, value in self.native.named_weights().items()}
        return {name: to_numpy(value) for name, value in self.native.to_canonical(tensors).items()}

    def _load(self, params: Arrays) -> None:
        self._catch_up()  # else the new rows would be taken for late ones
        with tf.device(self.device):
            self.native.load_canonical({name: tf.constant(value) for name, value in params.items()})

    def _on_device(self, *arrays: NDArray) -> list[Tensor]:
        self._catch_up()  # what these are computed with
        kinds = (self.dtype, tf.int32)
        with tf.device(self.device):
            return [tf.cast(tf.constant(array), kind) for array, kind in zip(arrays, kinds, strict=False)]

    def _loss(self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray) -> float:
        return float(self._loss_of(*self._on_device(hidden_ND, targets_N), extra_on(self.device, extra)))

    def _loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        inputs = (*self._on_device(hidden_ND, targets_N), extra_on(self.device, extra))
        loss, dhidden_ND, grads = self._grads_of(*inputs)
        canonical = self.native.to_canonical(grads)
        return float(loss), to_numpy(dhidden_ND), {name: to_numpy(grad) for name, grad in canonical.items()}

    def _log_probs(self, hidden_ND: NDArray) -> NDArray:
        return to_numpy(self._log_probs_of(*self._on_device(hidden_ND)))

    def _target_log_probs(self, hidden_ND: NDArray, targets_N: NDArray) -> NDArray:
        return to_numpy(self._target_log_probs_of(*self._on_device(hidden_ND, targets_N)))

    def _topk(self, hidden_ND: NDArray, k: int) -> tuple[NDArray, NDArray]:
        values, ids, _ = self._search_of(*self._on_device(hidden_ND), k)
        return to_numpy(values), to_numpy(ids)

    def _expanded_share(self, hidden_ND: NDArray, k: int) -> NDArray:
        return to_numpy(self._search_of(*self._on_device(hidden_ND), k)[2])

    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        values, ids = self._beam_of(*self._on_device(hidden_ND), k, width)
        return to_numpy(values), to_numpy(ids)

    def _sample(self, hidden_ND: NDArray, uniforms_NU: NDArray) -> NDArray:
        return to_numpy(self._sample_of(*self._on_device(hidden_ND), self._uniforms(uniforms_NU)))

    def _uniforms(self, uniforms_NU: NDArray) -> Tensor:
        with tf.device(self.device):
            return tf.constant(uniforms_NU, tf.float64 if self.dtype == tf.float64 else tf.float32)

    def _prepare(self, job: Job) -> Callable[[], object]:
        hidden, targets = self._on_device(job.hidden_ND, job.targets_N)
        uniforms, extra = self._uniforms(job.uniforms_NU), extra_on(self.device, job.extra)
        if job.work == "layer_step":
            return self._prepare_step(hidden, targets, extra, job.optimizer)
        if job.work == "topk":
            return self._decoding(self._search_of, hidden, job.k)
        if job.work == "beam":
            return self._decoding(self._beam_of, hidden, job.k, job.width)
        calls: dict[str, Callable[[], object]] = {
            "layer": lambda: self._grads_of(hidden, targets, extra),
            "sample": lambda: self._sample_of(hidden, uniforms),
            "log_probs": lambda: self._log_probs_of(hidden),
        }
        return self._precise(calls[job.work])

    def _decoding(self, function: Any, hidden: Tensor, *numbers: int) -> Callable[[], object]:
        """As a user would decode many batches of this shape."""
        called: Any = function
        if isinstance(function, tf.types.experimental.PolymorphicFunction):
            # To find the graph for these arguments each time anew takes TensorFlow 0.2 ms. Without the numbers that it
            # was traced for a call takes milliseconds: TensorFlow tries all it has against them first.
            called = function.get_concrete_function(hidden, *numbers)
        return self._precise(lambda: called(hidden, *numbers))

    def _prepare_step(
        self, hidden: Tensor, targets: Tensor, extra: Tensors, optimizer: Optimizer
    ) -> Callable[[], object]:
        layer, weights = self.native, self.native.named_weights()
        if optimizer.row_sparse:
            self._by_rows = updates = optimizers.Updates(optimizer, weights, layer.FEW_ROWS)
            reach_of = layer.reach
        else:
            updates, reach_of = optimizers.Updates(optimizer, weights), partial(OutputLayer.reach, layer)

        @traced(jit_compile=layer.jit_compile)
        def step(hidden: Tensor, targets: Tensor, extra: Tensors) -> Tensor:
            reach = reach_of(targets, **extra)
            _, dhidden, grads = self._gradients_of(reach, hidden, updates.read(reach.rows))
            updates.apply(grads, rows=reach.rows)
            return dhidden

        return self._precise(lambda: step(hidden, targets, extra))

    def _precise(self, work: Callable[[], object]) -> Callable[[], object]:
        def begin() -> object:
            with self.precision():
                return work()

        return begin

    def _wait(self, made: object) -> None:
        wait(made)

    def reaches_few_rows(self) -> bool:
        return bool(self.native.FEW_ROWS)

    def formulation(self) -> str:
        return self.native.formulation()
