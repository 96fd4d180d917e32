"""The layer of each method whose words can be split over the devices of a mesh."""

from __future__ import annotations

import importlib

from jax.sharding import Mesh

from vocabench.impls.errors import BadInput
from vocabench.impls.on_jax.parallel.layer import ParallelLayer
from vocabench.impls.on_jax.parallel.split import Split
from vocabench.impls.spec import LayerSpec

# The module of this package that has the layer of a method.
_MODULES = {
    **dict.fromkeys(("full_softmax", "inplace_softmax", "fused_softmax"), "softmax"),
    **{name: name for name in ("sohsm", "huffman")},
}


def methods() -> list[str]:
    """Return the methods whose words can be split."""
    return list(_MODULES)


def parallel(spec: LayerSpec, mesh: Mesh | None, axis_name: str | None = None) -> ParallelLayer:
    """Create the layer of `spec` with its words split over an axis of a mesh.

    Raises:
        BadInput: The method cannot be split, or the mesh does not have the axis.
    """
    if spec.method not in _MODULES:
        raise BadInput(f"{spec.method} with a mesh: allowed: {', '.join(_MODULES)}")
    module = importlib.import_module(f"vocabench.impls.on_jax.parallel.{_MODULES[spec.method]}")
    return module.LAYER(spec, Split.of(mesh, axis_name))
