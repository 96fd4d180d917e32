"""Differentiated softmax with projections in TensorFlow. See `impls/on_numpy/methods/d_softmax_star.py`."""

from __future__ import annotations

from vocabench.impls.on_tensorflow.methods.d_softmax import DifferentiatedSoftmax
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, product


class ProjectedDifferentiatedSoftmax(DifferentiatedSoftmax):
    """`DifferentiatedSoftmax` with projections P_b h instead of slices h_b.

    Weights: the weights of `DifferentiatedSoftmax`, and `band{b}_projection` (E_b, D).
    """

    def _inputs(self, hidden_ND: Tensor) -> list[Tensor]:
        return [product(hidden_ND, projection_ED) for projection_ED in self._by_band("projection")]


LAYER = ProjectedDifferentiatedSoftmax
