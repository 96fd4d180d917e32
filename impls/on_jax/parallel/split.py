"""The axis of a mesh over which the words of a layer are split, and what its devices exchange.

Every device computes with its own words inside of `jax.shard_map`. A few numbers for each token make the results those
of the whole vocabulary. Logits never leave their device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.on_jax.ops.arrays import Array

# The logit of a row beyond the vocabulary. Its exponential is 0, and unlike infinity it makes no NaN.
LOWEST = -1e30
EVERYWHERE = P()  # of an array that every device holds


@dataclass(frozen=True)
class Split:
    """The split of rows over an axis of a mesh.

    Attributes:
        mesh: The mesh.
        axis: Name of the axis. The other axes of the mesh are left to XLA, such as one over which tokens are split.
    """

    mesh: Mesh
    axis: str

    @classmethod
    def of(cls, mesh: Mesh | None, axis_name: str | None) -> Split:
        """Return the split over the named axis, or over the only one.

        Raises:
            BadInput: There is no such axis.
        """
        if not isinstance(mesh, Mesh):
            raise BadInput(f"mesh is a {type(mesh).__name__}: allowed: a jax.sharding.Mesh")
        if any(kind != AxisType.Auto for kind in mesh.axis_types):
            raise BadInput("mesh has Explicit axes: allowed: Auto ones, as of jax.sharding.Mesh(devices, ('vocab',))")
        names = [str(name) for name in mesh.axis_names]
        if axis_name is None and len(names) > 1:
            raise BadInput(f"axis_name is missing for a mesh of axes {', '.join(names)}: allowed: one of them")
        if axis_name is not None and axis_name not in names:
            raise unknown("axis_name", axis_name, names)
        return cls(mesh, names[0] if axis_name is None else axis_name)

    @property
    def parts(self) -> int:
        return self.mesh.shape[self.axis]

    def padded(self, rows: int) -> int:
        """Return the number of rows rounded up to a multiple of the parts."""
        return -(-rows // self.parts) * self.parts

    def placed(self, array: Any) -> Array:
        """Return an array (rows, ...) with rows of zeros up to a multiple of the parts, a part on each device."""
        pad = np.pad if isinstance(array, np.ndarray) else jnp.pad
        widths = [(0, self.padded(array.shape[0]) - array.shape[0]), *[(0, 0)] * (array.ndim - 1)]
        return jax.device_put(pad(array, widths), NamedSharding(self.mesh, P(self.axis)))

    def copied(self, array: Any) -> Array:
        """Return an array that every device holds."""
        return jax.device_put(array, NamedSharding(self.mesh, EVERYWHERE))

    def over(self, compute: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """Return `jax.shard_map` of a function over the axis."""
        return jax.shard_map(
            compute, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, axis_names=frozenset({self.axis})
        )

    # Inside of `over`.
    def first(self, rows: int) -> Array:
        """Return the number of the first of this device's rows, of which every device has so many."""
        return lax.axis_index(self.axis) * rows

    def joined(self, log_sum_N: Array, target_N: Array) -> tuple[Array, Array]:
        """Return the log-sum-exp (N,) over the words of all devices, and the targets' logits (N,).

        Args:
            log_sum_N: Log-sum-exp over the words of this device.
            target_N: The target's logit, and 0 on every device but one.
        """
        highest_N = lax.pmax(lax.stop_gradient(log_sum_N), self.axis)
        sum_N, target_N = lax.psum((jnp.exp(log_sum_N - highest_N), target_N), self.axis)
        return highest_N + jnp.log(sum_N), target_N

    def gathered(self, array_NX: Array) -> Array:
        """Return the arrays (N, X) of all devices, one after the other along the second axis."""
        return lax.all_gather(array_NX, self.axis, axis=1, tiled=True, to="invarying")
