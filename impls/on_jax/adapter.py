"""The adapter of JAX, as `impls/adapter.py` describes it."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vocabench.impls import cpp
from vocabench.impls.adapter import Parallel
from vocabench.impls.contract import Layer
from vocabench.impls.forms import CPU, Form, kind_of, on_device
from vocabench.impls.models.network import Config, Network, network_class
from vocabench.impls.on_jax.contract_layer import JaxLayer
from vocabench.impls.on_jax.device import JAX_DTYPES, check_device, devices, precision
from vocabench.impls.on_jax.memory import planned_bytes
from vocabench.impls.on_jax.native import layer_class, native
from vocabench.impls.on_jax.ops import cpp_kernels
from vocabench.impls.spec import LayerSpec

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

DISTRIBUTION = "jax"


def prepare_process() -> None:
    """Do nothing: XLA itself flushes denormal numbers to zero."""


def describe(device: str, dtype: str = "float32") -> dict[str, str]:
    """Return the versions and settings that a row of this device and precision keeps as provenance."""
    facts = {"jax": jax.__version__, "jaxlib": importlib.import_module("jaxlib").__version__}
    if kind_of(device) == CPU:
        facts |= {"threads": str(cpp_kernels.threads()), "device_name": platform.processor() or platform.machine()}
        return facts | {"compiler": cpp.version(cpp_kernels.interface())}
    gpu = check_device(device)
    with precision(dtype):
        return facts | {
            "device_name": gpu.device_kind,
            "platform": gpu.client.platform_version.replace("\n", " "),
            "matmul_precision": str(jax.config.jax_default_matmul_precision),
        }


def compute_capability(device: str) -> tuple[int, int]:
    """Return the compute capability of a CUDA device, or (0, 0) for any other device."""
    major, _, minor = getattr(check_device(device), "compute_capability", "0.0").partition(".")
    return int(major), int(minor)


def forms(spec: LayerSpec, device: str = "cpu") -> tuple[Form, ...]:
    """Return the forms of the layer on `device`, the preferred one first; empty where there is only one way."""
    return on_device(layer_class(spec.method).forms(spec), device)


def create_layer(spec: LayerSpec, device: str = "cpu") -> Layer:
    """Create the layer of `spec` behind the NumPy contract."""
    return JaxLayer(spec, check_device(device))


def create_network(spec: LayerSpec, config: Config, device: str = "cpu") -> Network[Any]:
    """Create the network of `config` with the output layer of `spec`."""
    return network_class("jax", config)(spec, config, check_device(device))


def parallel() -> Parallel:
    """Return how words are split over devices."""
    from vocabench.impls.on_jax.parallel.contract import JaxParallel  # few processes need it

    return JaxParallel()


def prepare_product(size: int, device: str, dtype: str) -> Callable[[], object]:
    """Return a function that multiplies two (size, size) matrices once and waits for the result.

    It computes the product in the way that is fastest for the layers.
    """
    jax_device = check_device(device)
    kernels = jax_device.platform == CPU and cpp_kernels.known(dtype)
    product = jax.jit(cpp_kernels.linear if kernels else jnp.matmul)
    with precision(dtype), jax.default_device(jax_device):
        left, right = jnp.asarray(np.random.default_rng(0).random((2, size, size)), JAX_DTYPES[dtype])

    def run() -> None:
        with precision(dtype):
            product(left, right).block_until_ready()

    return run


def prepare_add(size: int, device: str) -> Callable[[], object]:
    """Return a function that adds one float32 array (size,) to another in place and waits for the result."""
    add = jax.jit(jnp.add, donate_argnums=0)
    with jax.default_device(check_device(device)):
        total, summand = jnp.ones(size, jnp.float32), jnp.ones(size, jnp.float32)

    def run() -> None:
        nonlocal total
        total = add(total, summand).block_until_ready()

    return run


def counts_memory(device: str) -> bool:
    """Return whether JAX counts the memory that it uses on `device`."""
    return "peak_bytes_in_use" in (check_device(device).memory_stats() or {})


def peak_counted_bytes(device: str, run: Callable[[], object]) -> int:
    """Return the most memory in use on `device` during `run`, above what was in use before.

    It is what XLA has planned for the compiled functions that `run` calls. The steps of a network have no plans of
    their own: the result is then JAX's peak so far, minus what is in use after `run`.
    """
    if (planned := planned_bytes(run)) is not None:
        return planned
    stats = check_device(device).memory_stats()
    return int(stats["peak_bytes_in_use"] - stats["bytes_in_use"])
