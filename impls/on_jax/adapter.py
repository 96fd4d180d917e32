"""Binds JAX to the contract: devices, precision, synchronisation, memory, NumPy in and out."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from vocabench.impls import cpp
from vocabench.impls.contract import Job, Layer
from vocabench.impls.errors import unknown
from vocabench.impls.forms import Form, on_device
from vocabench.impls.models.network import Config, Network, network_class
from vocabench.impls.on_jax.layer import OutputLayer, Reach, Tree, put, wide
from vocabench.impls.on_jax.memory import called, planned_bytes
from vocabench.impls.on_jax.ops import cpp_kernels, sparse_rows
from vocabench.impls.on_jax.training import optimizers
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import Arrays, LayerSpec

DISTRIBUTION = "jax"  # what pip calls it

Device = Any  # jax.Device, which is no class to annotate with

JAX_DTYPES = {"float32": jnp.float32, "tf32": jnp.float32, "float64": jnp.float64, "bfloat16": jnp.bfloat16}


def _accelerators() -> list[Device]:
    try:
        return jax.devices("cuda")
    except RuntimeError:  # JAX's way to say that there is none
        return []


def devices() -> list[str]:
    return ["cpu", *(f"cuda:{number}" for number in range(len(_accelerators())))]


def prepare_process() -> None:
    """Nothing to set before measuring: XLA itself flushes denormal numbers to zero."""


def describe(device: str, dtype: str = "float32") -> dict[str, str]:
    """Versions and settings that a row of that precision keeps as provenance."""
    facts = {"jax": jax.__version__, "jaxlib": importlib.import_module("jaxlib").__version__}
    if not device.startswith("cuda"):
        facts |= {"threads": str(cpp_kernels.threads()), "device_name": platform.processor() or platform.machine()}
        return facts | {"compiler": cpp.version()}
    found = check_device(device)
    with precision(dtype):
        return facts | {
            "device_name": found.device_kind,
            "platform": found.client.platform_version.replace("\n", " "),
            "matmul_precision": str(jax.config.jax_default_matmul_precision),
        }


def check_device(device: str) -> Device:
    if device == "cpu":
        return jax.devices("cpu")[0]
    found = _accelerators()
    if device == "cuda" and found:
        return found[0]
    if device not in devices():
        raise unknown("device of jax", device, devices())
    return found[int(device.partition(":")[2])]


def compute_capability(device: str) -> tuple[int, int]:
    """Of a CUDA device; (0, 0) of any other."""
    major, _, minor = getattr(check_device(device), "compute_capability", "0.0").partition(".")
    return int(major), int(minor)


def precision(dtype: str) -> AbstractContextManager[Any]:
    """float64 is off in JAX unless asked for, and only here is it asked for: other programs keep their types.

    Else float32 products are TF32's in `tf32` and never else; by itself JAX takes TF32 where a device has it. What is
    compiled for a CPU is the same either way.
    """
    if dtype == "float64":
        return jax.enable_x64(True)
    return jax.default_matmul_precision("tensorfloat32" if dtype == "tf32" else "float32")


def prepare_product(size: int, device: str, dtype: str) -> Callable[[], object]:
    """A function that multiplies two matrices (size, size) once, as the fastest of the layers do, and waits until it is
    done."""
    place = check_device(device)
    kernels = place.platform == "cpu" and cpp_kernels.known(dtype)
    product = jax.jit(cpp_kernels.linear if kernels else jnp.matmul)
    with precision(dtype), jax.default_device(place):
        left, right = jnp.asarray(np.random.default_rng(0).random((2, size, size)), JAX_DTYPES[dtype])

    def run() -> None:
        with precision(dtype):
            product(left, right).block_until_ready()

    return run


def prepare_add(size: int, device: str) -> Callable[[], object]:
    """A function that adds one float32 array (size,) to another in place and waits until it is done."""
    add = jax.jit(jnp.add, donate_argnums=0)
    with jax.default_device(check_device(device)):
        total, other = jnp.ones(size, jnp.float32), jnp.ones(size, jnp.float32)

    def run() -> None:
        nonlocal total
        total = add(total, other).block_until_ready()

    return run


def counts_memory(device: str) -> bool:
    """Whether JAX counts the memory that it takes there."""
    return "peak_bytes_in_use" in (check_device(device).memory_stats() or {})


def peak_counted_bytes(device: str, run: Callable[[], object]) -> int:
    """Most memory of a device that XLA has planned for what `run` calls; of a model, whose steps are not planned one by
    one, most in use so far above what is in use after it."""
    if (planned := planned_bytes(run)) is not None:
        return planned
    stats = check_device(device).memory_stats()
    return int(stats["peak_bytes_in_use"] - stats["bytes_in_use"])


def native(spec: LayerSpec, device: Device | None = None) -> OutputLayer:
    """The method's functions, for use in a model of one's own, on `device` or where JAX puts arrays by itself."""
    if device is not None and device.platform == "cpu" and not spec.form:
        # There may be a GPU as well, whose forms would otherwise be chosen.
        spec = replace(spec, form=next((form.id for form in forms(spec)), ""))
    return importlib.import_module(f"vocabench.impls.on_jax.methods.{spec.method}").LAYER(spec)


def forms(spec: LayerSpec, device: str = "cpu") -> tuple[Form, ...]:
    """Return the forms of the layer on `device`, the preferred one first; empty where there is only one way."""
    layer: type[OutputLayer] = importlib.import_module(f"vocabench.impls.on_jax.methods.{spec.method}").LAYER
    return on_device(layer.forms(spec), device)


def create_layer(spec: LayerSpec, device: str = "cpu") -> Layer:
    return JaxLayer(spec, check_device(device))


def create_network(spec: LayerSpec, config: Config, device: str = "cpu") -> Network[Any]:
    """Create the network of `config` with the output layer of `spec`."""
    return network_class("jax", config)(spec, config, check_device(device))


def extra_on(device: Device, extra: Arrays) -> Tree:
    """The loss's random inputs."""
    narrow = {name: array.astype(np.int32) if array.dtype.kind == "i" else array for name, array in extra.items()}
    return jax.device_put(narrow, device)


def to_numpy(array: Any) -> NDArray:
    """On the host, with bfloat16 as float32."""
    return np.array(array.astype(jnp.float32) if array.dtype == jnp.bfloat16 else array)


class JaxLayer(Layer):
    """Any native layer behind the NumPy contract. Every function is compiled once a shape."""

    def __init__(self, spec: LayerSpec, device: Device) -> None:
        super().__init__(spec)
        self.device, self.dtype = device, JAX_DTYPES[spec.dtype]
        self.native = layer = native(spec, device)
        self._nll_of = jax.jit(layer.nll)
        # One compilation where the two are the same.
        self._losses_of = jax.jit(layer.losses) if spec.definition.train_only_loss else self._nll_of
        self._grads_of = jax.jit(jax.value_and_grad(layer.loss, argnums=(0, 2)))
        self._log_probs_of = jax.jit(layer.log_probs)
        self._search_of = jax.jit(layer.search, static_argnums=3)
        self._beam_of = jax.jit(layer.beam, static_argnums=(3, 4))
        self._sample_of = jax.jit(layer.sample)
        with precision(spec.dtype), jax.default_device(device):
            self._structure = jax.device_put(layer.structure(), device)
        self._held: Tree = {}
        self._catch_up: Callable[[], None] | None = None  # where a step has left rows behind
        self._load(spec.initial_parameters())

    def _load(self, params: Arrays) -> None:
        with precision(self.spec.dtype):
            tree = {name: put(value, self.dtype, self.device) for name, value in params.items()}
            if self._catch_up is not None:  # else the new rows would be taken for late ones
                self._catch_up()
            self._held = self.native.from_canonical(self._structure, tree)

    @property
    def _params(self) -> Tree:
        """With every row at the present step."""
        if self._catch_up is not None:
            self._catch_up()
        return self._held

    def parameters(self) -> Arrays:
        with precision(self.spec.dtype):
            tree = self.native.to_canonical(self._structure, self._params)
            return {name: to_numpy(value) for name, value in tree.items()}

    def _on_device(self, *arrays: NDArray) -> list[jax.Array]:
        kinds = [self.dtype, jnp.int32]
        return [put(a, k, self.device) for a, k in zip(arrays, kinds, strict=False)]

    def _loss(self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray) -> float:
        with precision(self.spec.dtype):
            inputs, ids = self._on_device(hidden_ND, targets_N), extra_on(self.device, extra)
            return float(self._losses_of(self._params, self._structure, *inputs, **ids).mean())

    def _loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        with precision(self.spec.dtype):
            inputs, ids = self._on_device(hidden_ND, targets_N), extra_on(self.device, extra)
            loss, (grads, dhidden_ND) = self._grads_of(self._params, self._structure, *inputs, **ids)
            canonical = self.native.to_canonical(self._structure, grads)
            return float(loss), to_numpy(dhidden_ND), {name: to_numpy(grad) for name, grad in canonical.items()}

    def _log_probs(self, hidden_ND: NDArray) -> NDArray:
        with precision(self.spec.dtype):
            return to_numpy(self._log_probs_of(self._params, self._structure, *self._on_device(hidden_ND)))

    def _target_log_probs(self, hidden_ND: NDArray, targets_N: NDArray) -> NDArray:
        with precision(self.spec.dtype):
            inputs = self._on_device(hidden_ND, targets_N)
            return -to_numpy(self._nll_of(self._params, self._structure, *inputs))

    def _topk(self, hidden_ND: NDArray, k: int) -> tuple[NDArray, NDArray]:
        with precision(self.spec.dtype):
            values, ids, _ = self._search_of(self._params, self._structure, *self._on_device(hidden_ND), k)
            return to_numpy(values), to_numpy(ids)

    def _expanded_share(self, hidden_ND: NDArray, k: int) -> NDArray:
        with precision(self.spec.dtype):
            return to_numpy(self._search_of(self._params, self._structure, *self._on_device(hidden_ND), k)[2])

    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        with precision(self.spec.dtype):
            values, ids = self._beam_of(self._params, self._structure, *self._on_device(hidden_ND), k, width)
            return to_numpy(values), to_numpy(ids)

    def _sample(self, hidden_ND: NDArray, uniforms_NU: NDArray) -> NDArray:
        with precision(self.spec.dtype):
            hidden, uniforms = *self._on_device(hidden_ND), self._uniforms(uniforms_NU)
            return to_numpy(self._sample_of(self._params, self._structure, hidden, uniforms))

    def _uniforms(self, uniforms_NU: NDArray) -> jax.Array:
        return put(uniforms_NU, wide(self.dtype), self.device)

    def _prepare(self, job: Job) -> Callable[[], object]:
        with precision(self.spec.dtype):
            hidden, targets = self._on_device(job.hidden_ND, job.targets_N)
            uniforms, extra = self._uniforms(job.uniforms_NU), extra_on(self.device, job.extra)
        if job.work == "layer_step":
            return self._prepare_step(hidden, targets, extra, job.optimizer)
        calls: dict[str, Callable[[], object]] = {
            "layer": lambda: called(self._grads_of, self._params, self._structure, hidden, targets, **extra),
            "topk": lambda: called(self._search_of, self._params, self._structure, hidden, job.k),
            "beam": lambda: called(self._beam_of, self._params, self._structure, hidden, job.k, job.width),
            "sample": lambda: called(self._sample_of, self._params, self._structure, hidden, uniforms),
            "log_probs": lambda: called(self._log_probs_of, self._params, self._structure, hidden),
        }

        def begin() -> object:
            with precision(self.spec.dtype):
                return calls[job.work]()

        return begin

    def _wait(self, made: object) -> None:
        jax.block_until_ready(made)

    def _prepare_step(
        self, hidden: jax.Array, targets: jax.Array, extra: Tree, optimizer: Optimizer
    ) -> Callable[[], object]:
        gradient = jax.grad(self.native.loss, argnums=(0, 2))

        def step(
            params: Tree, state: optimizers.State, structure: Tree, hidden: jax.Array, targets: jax.Array, extra: Tree
        ) -> tuple[Tree, optimizers.State, jax.Array]:
            reach = Reach({}, structure, targets, extra)
            if optimizer.row_sparse:
                reach = self.native.reach(structure, targets, **extra)
                params, state = optimizers.make_up(optimizer, params, state, reach.rows)
            read = sparse_rows.tables(params, reach.rows)
            grads, dhidden = gradient(read, reach.structure, hidden, reach.targets_N, **reach.extra)
            return *optimizers.update(optimizer, params, grads, state, rows=reach.rows), dhidden

        compiled = jax.jit(step, donate_argnums=(0, 1))
        make_up = jax.jit(partial(optimizers.make_up, optimizer), donate_argnums=(0, 1))
        with precision(self.spec.dtype):
            # The step gives its buffers away: it must own them.
            self._held = jax.tree.map(jnp.copy, self._params)
            state = optimizers.init(optimizer, self._held, self.native.FEW_ROWS if optimizer.row_sparse else ())

        def catch_up() -> None:
            nonlocal state
            self._catch_up = None
            with precision(self.spec.dtype):
                self._held, state = make_up(self._held, state)

        def begin() -> object:
            nonlocal state
            with precision(self.spec.dtype):
                given = self._held, state, self._structure, hidden, targets, extra
                self._held, state, dhidden = called(compiled, *given)
            self._catch_up = catch_up if state.seen else None
            return self._held, dhidden

        return begin

    def reaches_few_rows(self) -> bool:
        return bool(self.native.FEW_ROWS)

    def formulation(self) -> str:
        return self.native.formulation()
