"""A layer's parameters: their canonical form, another vocabulary, and word vectors that an embedding shares."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from vocabench.impls.on_torch import tying
from vocabench.impls.on_torch.state import Structured
from vocabench.impls.on_torch.tensors import Tensors, at_least_float32
from vocabench.impls.resizing import carried_over, resized
from vocabench.impls.spec import LayerSpec, check_like
from vocabench.impls.tying import tied_name


class Convertible(Structured):
    """A layer whose parameters have a canonical form (`impls/spec.py`).

    Attributes:
        row_sparse: Whether gradients that reach few rows of a parameter are sparse tensors, as those of
            `nn.Embedding(sparse=True)`. A layer that reaches most rows gives dense gradients all the same.
    """

    row_sparse = False
    _tied: tuple[nn.Embedding, ...] = ()  # the embedding, in a tuple, so that it is no submodule

    def to_canonical(self, tensors: Tensors) -> Tensors:
        return dict(tensors)

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return dict(tensors)

    @torch.no_grad()
    def load_canonical(self, tensors: Tensors) -> None:
        """Assign parameters in canonical form.

        Raises:
            BadInput: They have other names or shapes than those of the layer.
        """
        check_like(self.spec, {name: value.shape for name, value in tensors.items()})
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

        An embedding that is tied to this layer gets the new vocabulary and is tied to the new layer instead.

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
        for embedding in self._tied:
            if tying.is_tied(embedding, self):
                words_VD = made.to_canonical(dict(made.named_parameters()))[tied_name(spec)]
                tying.give_weight(embedding, words_VD.detach().clone())
                made.tie(embedding)
        return made

    @torch.no_grad()
    def tie(self, embedding: nn.Embedding) -> None:
        """Share the word vectors with an embedding (Press and Wolf 2017), whose present values the layer takes over.

        Gradients of both uses add up. Tie before an optimizer is created: one of the two parameters is replaced. A
        layer that stores words in another order than that of their ids keeps its parameter, in which the embedding
        looks words up from now on, also after `reorganize`.

        Args:
            embedding: (V, D), in the dtype and on the device of the layer.

        Raises:
            BadInput: The layer has no (V, D) weight of words, or the embedding has another shape, dtype or device.
        """
        name = tied_name(self.spec)
        tying.check_embedding(embedding, self.spec, next(self.parameters()))
        self._tie(embedding, name)
        self._tied = (embedding,)

    def _tie(self, embedding: nn.Embedding, name: str) -> None:
        """Share the canonical parameter `name` with a checked embedding."""
        words_VD = embedding.weight.detach()
        tying.look_up_in(self, embedding)
        canonical = self.to_canonical({key: value.detach() for key, value in self.named_parameters()})
        self.load_canonical(canonical | {name: words_VD})

    def word_vectors(self, ids: Tensor) -> Tensor:
        """Return the (..., D) vectors of words (...), which layers have that can be tied."""
        raise NotImplementedError(f"{self.spec.method} has no vectors of words")
