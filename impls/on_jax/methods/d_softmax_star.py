"""Differentiated softmax with projections in JAX. See `impls/on_numpy/methods/d_softmax_star.py`."""

from __future__ import annotations

from vocabench.impls.on_jax.methods.d_softmax import DifferentiatedSoftmax
from vocabench.impls.on_jax.ops.arrays import Array, Tree, product


class ProjectedDifferentiatedSoftmax(DifferentiatedSoftmax):
    """`DifferentiatedSoftmax` with projections P_b h instead of slices h_b.

    Parameters: those of `DifferentiatedSoftmax` and `band{b}_projection` (E_b, D).
    """

    def _inputs(self, params: Tree, hidden_ND: Array) -> list[Array]:
        return [product(hidden_ND, projection_ED) for projection_ED in self._of_bands(params, "projection")]


LAYER = ProjectedDifferentiatedSoftmax
