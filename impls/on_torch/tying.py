"""Weight tying: word vectors that an embedding and an output layer share (Press and Wolf 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from vocabench.impls.errors import BadInput
from vocabench.impls.spec import LayerSpec
from vocabench.impls.tying import check_shape


class WordVectors(Protocol):
    """A layer with word vectors, in an order of its own."""

    spec: LayerSpec

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def word_vectors(self, ids: Tensor) -> Tensor: ...


class LookupInLayer(nn.Embedding):
    """An embedding without a parameter, which looks words up in an output layer, wherever that stores them.

    Copies and pickles of a model that contains both keep them tied. The state holds the vectors once, in the layer's.
    """

    _layer: tuple[WordVectors]  # in a tuple, so that the layer is no submodule

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The (V, D) vectors in the order of the words: a copy, through which gradients flow."""
        (layer,) = self._layer
        return layer.word_vectors(torch.arange(self.num_embeddings, device=next(layer.parameters()).device))

    def forward(self, input: Tensor) -> Tensor:
        (layer,) = self._layer
        vectors = layer.word_vectors(input)
        if self.padding_idx is None:
            return vectors
        return torch.where((input == self.padding_idx)[..., None], vectors.detach(), vectors)


def is_tied(embedding: nn.Embedding, layer: WordVectors) -> bool:
    """Return whether an embedding and a layer share their vectors."""
    if isinstance(embedding, LookupInLayer):
        return embedding._layer[0] is layer
    return any(embedding.weight is parameter for parameter in layer.parameters())


def give_weight(embedding: nn.Embedding, vectors_VD: Tensor) -> None:
    """Give a tied embedding a weight of its own, for any number of words."""
    trains = embedding.weight.requires_grad
    if isinstance(embedding, LookupInLayer):
        embedding.__class__ = nn.Embedding
        del embedding._layer
        trains = True
    embedding.weight = nn.Parameter(vectors_VD, requires_grad=trains)
    embedding.num_embeddings = len(vectors_VD)
    if embedding.padding_idx is not None and embedding.padding_idx >= len(vectors_VD):
        embedding.padding_idx = None


def check_embedding(embedding: object, spec: LayerSpec, like: Tensor) -> None:
    """Refuse anything but an embedding of the layer's words, in the dtype and on the device of its parameter `like`."""
    if not isinstance(embedding, nn.Embedding) or isinstance(embedding, LookupInLayer):
        what = "already tied" if isinstance(embedding, LookupInLayer) else f"a {type(embedding).__name__}"
        raise BadInput(f"embedding is {what}: allowed: a torch.nn.Embedding of its own")
    weight = embedding.weight
    check_shape(weight.shape, spec)
    if (weight.dtype, weight.device) != (like.dtype, like.device):
        given, allowed = (f"{tensor.dtype} on {tensor.device}" for tensor in (weight, like))
        raise BadInput(f"embedding is {given}: allowed: {allowed}")


def look_up_in(layer: WordVectors, embedding: nn.Embedding) -> None:
    """Make the embedding look its words up in the layer, in place of its own weight.

    Raises:
        BadInput: The embedding does more than look words up.
    """
    has_options = embedding.max_norm is not None or embedding.sparse or embedding.scale_grad_by_freq
    if has_options or type(embedding).forward is not nn.Embedding.forward:
        raise BadInput(f"embedding={embedding!r}: allowed with {layer.spec.method}: an nn.Embedding without options")
    del embedding.weight
    embedding.__class__ = LookupInLayer
    embedding._layer = (layer,)  # type: ignore[assignment]
