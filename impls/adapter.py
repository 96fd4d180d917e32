"""The adapter: what each framework offers to the harness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from vocabench.impls.contract import Layer
from vocabench.impls.forms import Form
from vocabench.impls.models.network import Config, Network
from vocabench.impls.spec import LayerSpec


class Part(Protocol):
    """One process's part of layers whose words are split over devices. All processes make the same calls."""

    def create_layer(self, spec: LayerSpec) -> Layer:
        """Create the layer of `spec`, of which each device holds some words, behind the NumPy contract."""
        ...

    def highest(self, value: float) -> float:
        """Return the highest value of all processes, once all have called this."""
        ...

    def parameters_of_device(self, layer: Layer) -> int:
        """Return the largest number of parameters of such a layer on any device of this process."""
        ...

    def leave(self) -> None:
        """End the connection to the other processes."""
        ...


class Parallel(Protocol):
    """How a framework splits the words of layers over devices."""

    def methods(self) -> list[str]:
        """Return the methods whose words can be split."""
        ...

    def environments(self, devices: int, device: str) -> list[dict[str, str]]:
        """Return the environment variables of each of the processes that hold some of `devices` devices."""
        ...

    def join(self, devices: int, device: str, rank: int, folder: str) -> Part:
        """Join the other processes as one of them.

        Args:
            devices: Number of devices of all processes.
            device: Their kind: "cpu" or "cuda".
            rank: Number of this process, from 0.
            folder: An empty folder, the same for all processes.
        """
        ...


class Adapter(Protocol):
    """The functions of a framework's `adapter` module. Devices are "cpu", "cuda", "cuda:1", ...

    Attributes:
        DISTRIBUTION: The name under which pip installs the framework.
    """

    @property
    def DISTRIBUTION(self) -> str: ...

    def devices(self) -> list[str]:
        """Return the devices that the framework can use here, "cpu" first."""
        ...

    def prepare_process(self) -> None:
        """Set what has to be set once, before the process measures anything."""
        ...

    def describe(self, device: str, dtype: str = ...) -> dict[str, str]:
        """Return the versions and settings that a row of this device and precision keeps as provenance."""
        ...

    def compute_capability(self, device: str) -> tuple[int, int]:
        """Return the compute capability of a CUDA device, or (0, 0) for any other device."""
        ...

    def forms(self, spec: LayerSpec, device: str = ...) -> tuple[Form, ...]:
        """Return the forms of the layer on `device`, the preferred one first; empty where there is only one way."""
        ...

    def create_layer(self, spec: LayerSpec, device: str = ...) -> Layer:
        """Create the layer of `spec` behind the NumPy contract."""
        ...

    def create_network(self, spec: LayerSpec, config: Config, device: str = ...) -> Network[Any]:
        """Create the network of `config` with the output layer of `spec`."""
        ...

    def parallel(self) -> Parallel | None:
        """Return how words are split over devices; None if the framework has no such layers."""
        ...

    def prepare_product(self, size: int, device: str, dtype: str) -> Callable[[], object]:
        """Return a function that multiplies two (size, size) matrices once and waits for the result."""
        ...

    def prepare_add(self, size: int, device: str) -> Callable[[], object]:
        """Return a function that adds one float32 array (size,) to another in place and waits for the result."""
        ...

    def counts_memory(self, device: str) -> bool:
        """Return whether the framework counts the memory that it uses on `device`."""
        ...

    def peak_counted_bytes(self, device: str, run: Callable[[], object]) -> int:
        """Return the most memory in use on `device` during `run`, above what was in use before.

        Only where `counts_memory` is true.
        """
        ...
