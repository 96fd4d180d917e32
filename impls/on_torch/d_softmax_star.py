"""Differentiated softmax with projections in PyTorch. See `impls/on_numpy/d_softmax_star.py`."""

from __future__ import annotations

from torch import Tensor

from vocabench.impls.on_torch import _products
from vocabench.impls.on_torch.d_softmax import DifferentiatedSoftmax


class ProjectedDifferentiatedSoftmax(DifferentiatedSoftmax):
    """As `DifferentiatedSoftmax`, with P_b h in place of a slice h_b.

    Parameters: those, and `band{b}_projection` (E_b, D).
    """

    def _inputs(self, hidden_ND: Tensor) -> list[Tensor]:
        return [_products.linear(hidden_ND, projection_ED) for projection_ED in self._of_bands("projection")]


LAYER = ProjectedDifferentiatedSoftmax
