"""Binds TensorFlow to the contract: devices, precision, synchronisation, memory, NumPy in and out."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

# Read when TensorFlow and Keras are imported: no chatter below errors, and Keras on TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from vocabench.impls import cpp
from vocabench.impls.contract import Job, Layer
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.forms import Form, on_device
from vocabench.impls.models.network import Config, Network, network_class
from vocabench.impls.on_tensorflow.layer import OutputLayer, Reach, Tensor, Tensors, on_gpu, traced
from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.training import optimizers
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.precision import Precise
from vocabench.impls.spec import Arrays, LayerSpec, storage

DISTRIBUTION = "tensorflow"  # what pip calls it

tf.get_logger().setLevel("ERROR")

if keras.backend.backend() != "tensorflow":
    raise BadInput(f"Keras was imported with backend {keras.backend.backend()!r}: allowed: KERAS_BACKEND=tensorflow")

for _device in tf.config.list_physical_devices("GPU"):
    # Else the first program takes the whole card, and a peak cannot be told from what is merely held.
    tf.config.experimental.set_memory_growth(_device, True)


def devices() -> list[str]:
    return ["cpu", *(f"cuda:{number}" for number in range(len(tf.config.list_physical_devices("GPU"))))]


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
            "device_name": str(_details(device).get("device_name", "")),
            "cuda": str(build.get("cuda_version", "")),
            "cudnn": str(build.get("cudnn_version", "")),
            "tf32": str(tf.config.experimental.tensor_float_32_execution_enabled()),
        }


def _details(device: str) -> dict[str, Any]:
    found = tf.config.list_physical_devices("GPU")[int(device.partition(":")[2] or 0)]
    return tf.config.experimental.get_device_details(found)


def check_device(device: str) -> str:
    """TensorFlow's own name of a device."""
    known = devices()
    if device not in known and not (device == "cuda" and len(known) > 1):
        raise unknown("device of tensorflow", device, known)
    return "/CPU:0" if device == "cpu" else f"/GPU:{device.partition(':')[2] or 0}"


def compute_capability(device: str) -> tuple[int, int]:
    """Of a CUDA device; (0, 0) of any other."""
    return (0, 0) if check_device(device) == "/CPU:0" else _details(device).get("compute_capability", (0, 0))


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


def native(spec: LayerSpec) -> OutputLayer:
    """The method's Keras layer with its initial weights, for use in a model of one's own."""
    layer: OutputLayer = importlib.import_module(f"vocabench.impls.on_tensorflow.methods.{spec.method}").LAYER(spec)
    layer.load_canonical({name: tf.constant(value) for name, value in spec.initial_parameters().items()})
    return layer


def forms(spec: LayerSpec, device: str = "cpu") -> tuple[Form, ...]:
    """Return the forms of the layer on `device`, the preferred one first; empty where there is only one way."""
    layer: type[OutputLayer] = importlib.import_module(f"vocabench.impls.on_tensorflow.methods.{spec.method}").LAYER
    return on_device(layer.forms(spec), device)


def create_layer(spec: LayerSpec, device: str = "cpu") -> Layer:
    return TensorFlowLayer(spec, check_device(device))


def create_network(spec: LayerSpec, config: Config, device: str = "cpu") -> Network[Any]:
    """Create the network of `config` with the output layer of `spec`."""
    return network_class("tensorflow", config)(spec, config, check_device(device))


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


def wait(results: object) -> None:
    """Until the devices have made `results`. A CPU has when a call returns; to ask takes 0.1 ms."""
    if on_gpu():
        tf.test.experimental.sync_devices()
