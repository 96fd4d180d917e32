"""Conversion of a layer's parameters to and from their canonical form, and to another vocabulary."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike

from vocabench.impls.on_torch.state import Structured
from vocabench.impls.on_torch.tensors import Tensors, at_least_float32
from vocabench.impls.resizing import carried_over, resized
from vocabench.impls.spec import LayerSpec


class Convertible(Structured):
    """A layer whose parameters have a canonical form (`impls/spec.py`).

    Attributes:
        row_sparse: Whether gradients that reach few rows of a parameter are sparse tensors, as those of
            `nn.Embedding(sparse=True)`. A layer that reaches most rows gives dense gradients all the same.
    """

    row_sparse = False

    def to_canonical(self, tensors: Tensors) -> Tensors:
        return dict(tensors)

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return dict(tensors)

    @torch.no_grad()
    def load_canonical(self, tensors: Tensors) -> None:
        parameters = dict(self.named_parameters())
        like = next(iter(parameters.values()))  # all have one dtype and device
        for name, value in self.from_canonical({n: v.to(like) for n, v in tensors.items()}).items():
            parameters[name].copy_(value)

    def present_spec(self) -> LayerSpec:
        """Return the specification with the present structure, which training may have changed."""
        return self.spec

    @torch.no_grad()
    def resize(self, counts: ArrayLike, **options: object) -> Self:
        """Return a layer for another vocabulary, on the same device, with what the parameters have learned.

        Args:
            counts: (V',) how often each word of the new vocabulary occurs. Word ids stay: a smaller vocabulary drops
                the last words, and a larger one appends words.
            **options: Options of the method to change.

        Raises:
            BadInput: As `resizing.resized`.
        """
        before, like = self.present_spec(), next(self.parameters())
        spec = resized(before, counts, **options)
        canonical = self.to_canonical({name: value.detach() for name, value in self.named_parameters()})
        arrays = {name: at_least_float32(value).cpu().numpy() for name, value in canonical.items()}
        made = type(self)(spec).to(like.device, like.dtype).train(self.training)
        carried = carried_over(before, spec, arrays)
        made.load_canonical({name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in carried.items()})
        made.row_sparse = self.row_sparse
        return made
