"""Adapter that exposes the float64 definitions in NumPy, on the CPU, to the harness."""

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

DISTRIBUTION = "numpy"  # name on PyPI


def devices() -> list[str]:
    return ["cpu"]


def prepare_process() -> None:
    """Do nothing: NumPy needs no settings before a measurement."""


def describe(device: str, dtype: str = "float64") -> dict[str, str]:
    """Return versions and settings that a row stores as provenance."""
    return {"numpy": np.__version__, "device_name": platform.processor() or platform.machine()}


def compute_capability(device: str) -> tuple[int, int]:
    """Return (0, 0), since there is no CUDA device."""
    return (0, 0)


def parallel() -> None:
    """Return None: there are no layers whose words are split."""


def prepare_product(size: int, device: str, dtype: str) -> Callable[[], object]:
    """Return a function that multiplies two matrices (size, size) once."""
    left, right = np.random.default_rng(0).random((2, size, size)).astype(dtype)
    out = np.empty_like(left)
    return lambda: np.matmul(left, right, out=out)


def prepare_add(size: int, device: str) -> Callable[[], object]:
    """Return a function that adds one float32 array (size,) to another in place."""
    total, other = np.ones(size, np.float32), np.ones(size, np.float32)
    return lambda: np.add(total, other, out=total)


def counts_memory(device: str) -> bool:
    """Return False: only the operating system counts the memory of the process."""
    return False


def peak_counted_bytes(device: str, run: Callable[[], object]) -> int:
    """Raise `Unsupported`, since `counts_memory` is False."""
    raise Unsupported("numpy counts no memory: allowed: the process's high-water mark")


def forms(spec: LayerSpec, device: str = "cpu") -> tuple[Form, ...]:
    """Return no forms, since a definition is written only once."""
    return ()


def create_layer(spec: LayerSpec, device: str = "cpu") -> Layer:
    """Create the layer of `spec`, whose dtype must be float64, the only precision of the oracle."""
    if device != "cpu":
        raise unknown("device of numpy", device, devices())
    if spec.dtype != "float64":
        raise BadInput(f"dtype={spec.dtype!r} on numpy: allowed: 'float64', the oracle's precision")
    return importlib.import_module(f"vocabench.impls.on_numpy.methods.{spec.method}").LAYER(spec)


def create_network(spec: LayerSpec, config: Config, device: str = "cpu") -> Network[Any]:
    """Create the network of `config` with the output layer of `spec`."""
    return network_class("numpy", config)(spec, config, create_layer(spec, device))
