"""The adapter: what each framework offers to the harness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from vocabench.impls.contract import Layer
from vocabench.impls.forms import Form
from vocabench.impls.models.network import Config, Network
from vocabench.impls.spec import LayerSpec


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
