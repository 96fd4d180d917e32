"""NumPy as a framework of the harness: the float64 definitions on the CPU."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable
from typing import Any

import numpy as np

from vocabench.impls.contract import Layer
from vocabench.impls.errors import BadInput, Unsupported, unknown
from vocabench.impls.forms import Form
from vocabench.impls.models.network import Config, Network, network_class
from vocabench.impls.spec import LayerSpec

DISTRIBUTION = "numpy"  # what pip calls it


def devices() -> list[str]:
    return ["cpu"]


def prepare_process() -> None:
    """Nothing to set before measuring."""


def describe(device: str, dtype: str = "float64") -> dict[str, str]:
    """Versions and settings that a row keeps as provenance."""
    return {"numpy": np.__version__, "device_name": platform.processor() or platform.machine()}


def compute_capability(device: str) -> tuple[int, int]:
    """(0, 0): no CUDA device."""
    return (0, 0)


def prepare_product(size: int, device: str, dtype: str) -> Callable[[], object]:
    """A function that multiplies two matrices (size, size) once."""
    left, right = np.random.default_rng(0).random((2, size, size)).astype(dtype)
    out = np.empty_like(left)
    return lambda: np.matmul(left, right, out=out)


def prepare_add(size: int, device: str) -> Callable[[], object]:
    """A function that adds one float32 array (size,) to another in place."""
    total, other = np.ones(size, np.float32), np.ones(size, np.float32)
    return lambda: np.add(total, other, out=total)


def counts_memory(device: str) -> bool:
    """No: the system does."""
    return False


def peak_counted_bytes(device: str, run: Callable[[], object]) -> int:
    """Never called: `counts_memory` is false."""
    raise Unsupported("numpy counts no memory: allowed: the process's high-water mark")


def forms(spec: LayerSpec, device: str = "cpu") -> tuple[Form, ...]:
    """None: the definition is written once."""
    return ()


def create_layer(spec: LayerSpec, device: str = "cpu") -> Layer:
    """The layer of `spec`, whose dtype must be float64, the oracle's only precision."""
    if device != "cpu":
        raise unknown("device of numpy", device, devices())
    if spec.dtype != "float64":
        raise BadInput(f"dtype={spec.dtype!r} on numpy: allowed: 'float64', the oracle's precision")
    return importlib.import_module(f"vocabench.impls.on_numpy.methods.{spec.method}").LAYER(spec)


def create_network(spec: LayerSpec, config: Config, device: str = "cpu") -> Network[Any]:
    """Create the network of `config` with the output layer of `spec`."""
    return network_class("numpy", config)(spec, config, create_layer(spec, device))
