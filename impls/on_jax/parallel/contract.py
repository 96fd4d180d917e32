"""Layers whose words are split over the devices of a mesh, behind the NumPy contract: one process for all devices."""

from __future__ import annotations

import math
import os

import jax
from jax.sharding import Mesh, NamedSharding

from vocabench.impls.contract import Layer
from vocabench.impls.forms import CPU, kind_of
from vocabench.impls.on_jax.contract_layer import JaxLayer
from vocabench.impls.on_jax.parallel.native import methods, parallel
from vocabench.impls.on_jax.parallel.split import EVERYWHERE
from vocabench.impls.spec import LayerSpec

_FLAGS = "XLA_FLAGS"  # read when JAX finds its devices


class WholeMesh:
    """All devices of a mesh of one axis, as `impls.adapter.Part` describes it."""

    def __init__(self, devices: int, device: str) -> None:
        self._mesh = Mesh(jax.devices(kind_of(device))[:devices], ("words",))

    def create_layer(self, spec: LayerSpec) -> Layer:
        everywhere = NamedSharding(self._mesh, EVERYWHERE)
        return JaxLayer(spec, self._mesh.devices.flat[0], parallel(spec, self._mesh), everywhere)

    def highest(self, value: float) -> float:
        return value

    def parameters_of_device(self, layer: Layer) -> int:
        assert isinstance(layer, JaxLayer)
        return sum(math.prod(value.addressable_shards[0].data.shape) for value in layer.held.values())

    def leave(self) -> None:
        """Do nothing: there are no other processes."""


class JaxParallel:
    """Words over the devices of a mesh, as `impls.adapter.Parallel` describes it."""

    def methods(self) -> list[str]:
        return methods()

    def environments(self, devices: int, device: str) -> list[dict[str, str]]:
        if kind_of(device) != CPU:
            return [{}]
        return [{_FLAGS: f"{os.environ.get(_FLAGS, '')} --xla_force_host_platform_device_count={devices}".strip()}]

    def join(self, devices: int, device: str, rank: int, folder: str) -> WholeMesh:
        return WholeMesh(devices, device)
