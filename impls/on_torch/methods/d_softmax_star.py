"""Differentiated softmax with projections in PyTorch. See `impls/on_numpy/methods/d_softmax_star.py`."""

from __future__ import annotations

from torch import Tensor

from vocabench.impls.on_torch.methods.d_softmax import DifferentiatedSoftmax
from vocabench.impls.on_torch.ops import products


class ProjectedDifferentiatedSoftmax(DifferentiatedSoftmax):
    """`DifferentiatedSoftmax` with projections P_b h instead of slices h_b.

    Parameters: those of `DifferentiatedSoftmax`, and `band{b}_projection` (E_b, D).
    """

    def _inputs(self, hidden_ND: Tensor) -> list[Tensor]:
        return [products.linear(hidden_ND, projection_ED) for projection_ED in self._of_bands("projection")]


LAYER = ProjectedDifferentiatedSoftmax
