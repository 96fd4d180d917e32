"""The base of JAX layers whose words are split over the devices of a mesh."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from vocabench.impls.errors import BadInput
from vocabench.impls.forms import Form
from vocabench.impls.on_jax.device import JAX_DTYPES, Device, precision
from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.on_jax.native import layer_class
from vocabench.impls.on_jax.ops.arrays import Array, Tree
from vocabench.impls.on_jax.parallel.split import Split
from vocabench.impls.spec import LayerSpec, check_seed


class ParallelLayer(OutputLayer):
    """A layer whose words are split over an axis of a mesh. Its calls take and return arrays of the whole mesh.

    Attributes:
        split: The mesh and its axis.
    """

    def __init__(self, spec: LayerSpec, split: Split) -> None:
        super().__init__(spec)
        self.split = split

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return layer_class(spec.method).forms(spec)

    @cached_property
    def _key(self) -> tuple[Hashable, ...]:
        return *super()._key, self.split

    def of_spec(self, spec: LayerSpec) -> Self:
        whole = layer_class(spec.method)(self.spec).of_spec(spec)
        return type(self)(whole.spec, self.split)

    def init(self, seed: int | None = None, device: Device | None = None) -> tuple[Tree, Tree]:
        """Create the initial parameters, of which every device gets its part, and the structure.

        Args:
            seed: Seed of the initial parameters; the specification's seed if None.
            device: None: the mesh has the devices.
        """
        if device is not None:
            raise BadInput(f"device={device} with a mesh: allowed: None, the devices of the mesh")
        spec = self.spec if seed is None else replace(self.spec, seed=check_seed(seed))
        with precision(spec.dtype):
            structure = self.structure()
            canonical = spec.initial_parameters()
            params: dict[str, Any] = {
                name: np.asarray(value, JAX_DTYPES[spec.dtype]) for name, value in canonical.items()
            }
            return self.from_canonical(structure, params), structure

    def formulation(self) -> str:
        return f"{super().formulation()}, words over {self.split.parts} devices"

    def _beam(self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int) -> Any:
        raise BadInput(f"beam of {self.spec.method} over {self.split.parts} devices: allowed: topk, which is exact")
