"""Which parameter of a layer can be shared with an embedding (Press and Wolf 2017)."""

from __future__ import annotations

from collections.abc import Sequence

from vocabench.impls.errors import BadInput
from vocabench.impls.spec import LayerSpec

_NAMES = ("weight", "word_weight")  # canonical parameters with a vector for each word


def can_tie(spec: LayerSpec) -> bool:
    """Return whether the layer has a vector of the width of hidden vectors for each word."""
    return bool(_candidates(spec))


def tied_name(spec: LayerSpec) -> str:
    """Return the canonical name of a layer's (V, D) word vectors.

    Raises:
        BadInput: The layer has no vector of the width of hidden vectors for each word.
    """
    for name in _candidates(spec):
        return name
    raise BadInput(f"tie of {spec.method}: allowed: methods with a (V, D) weight of words, such as full_softmax")


def _candidates(spec: LayerSpec) -> list[str]:
    shapes = spec.parameter_shapes()
    return [name for name in _NAMES if shapes.get(name) == (spec.vocab, spec.dim)]


def check_shape(shape: Sequence[int], spec: LayerSpec) -> None:
    """Raise `BadInput` if an embedding has not one vector for each word."""
    if tuple(shape) != (spec.vocab, spec.dim):
        raise BadInput(f"embedding has shape {tuple(shape)}: allowed: {(spec.vocab, spec.dim)}")
