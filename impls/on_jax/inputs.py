"""The inputs of a layer's calls: checked, and flattened to one axis of tokens.

Values are read where that costs next to nothing: outside of traced functions, on a CPU. Elsewhere the loss of a target
outside the vocabulary is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from vocabench.impls import calls
from vocabench.impls import targets as values
from vocabench.impls.errors import BadInput
from vocabench.impls.on_jax.ops.arrays import Array, Tree, wide
from vocabench.impls.spec import LayerSpec


class Targets(NamedTuple):
    """The targets of a batch.

    Attributes:
        words_N: int32 word ids; some word of the vocabulary at padding and where a target is outside the vocabulary.
        real_N: False at padding; None if there is none for certain.
        outside_N: True where a target is outside the vocabulary; None if all are inside for certain.
    """

    words_N: Array
    real_N: Array | None = None
    outside_N: Array | None = None

    @property
    def observed_N(self) -> Array:
        """The words, and -1 at padding and where a target is outside the vocabulary."""
        words_N = self.words_N if self.real_N is None else jnp.where(self.real_N, self.words_N, -1)
        return words_N if self.outside_N is None else jnp.where(self.outside_N, -1, words_N)


def array_of(name: str, value: Any) -> Array:
    """Return `value` as an array of JAX.

    Raises:
        BadInput: It is not an array.
    """
    if not isinstance(value, jax.Array | np.ndarray):
        raise BadInput(f"{name} is a {type(value).__name__}: allowed: an array of JAX or NumPy")
    return jnp.asarray(value)


def check_tree(kind: str, method: str, tree: Any, shapes: Mapping[str, tuple[int, ...]], *, exactly: bool) -> Tree:
    """Return a dictionary of arrays, after checking its names and shapes.

    Args:
        kind: "params" or "structure".
        method: The method, for the message.
        tree: What the caller gave.
        shapes: The shapes of a layer's arrays.
        exactly: Whether there may be no further names.

    Raises:
        BadInput: It is no dictionary of arrays, or belongs to another layer.
    """
    if not isinstance(tree, Mapping):
        raise BadInput(f"{kind} of {method} is a {type(tree).__name__}: allowed: a dictionary as of init()")
    missing = [name for name in shapes if name not in tree]
    extra = [name for name in tree if name not in shapes] if exactly else []
    if missing or extra:
        raise BadInput(
            f"{kind} of {method}: missing {missing or 'none'}, unexpected {extra or 'none'}: "
            f"allowed: {'exactly ' if exactly else ''}{list(shapes)}"
        )
    for name, shape in shapes.items():
        if np.shape(tree[name]) != shape:
            raise BadInput(f"{kind} of {method}: {name} has shape {np.shape(tree[name])}: allowed: {shape}")
    return {
        name: jnp.asarray(value) if isinstance(value, np.ndarray | np.generic) else value
        for name, value in tree.items()
    }


def is_floating(array: Array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.floating)


def is_integer(array: Array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.integer)


def is_readable(array: Any) -> bool:
    """Return whether the host can read the values at once."""
    if isinstance(array, core.Tracer) or not isinstance(array, jax.Array):
        return False
    return len(array.devices()) == 1 and next(iter(array.devices())).platform == "cpu"


def is_traced_integer(value: Any) -> bool:
    """Return whether `value` is an integer argument of a function that is traced, not known yet."""
    return isinstance(value, core.Tracer) and value.ndim == 0 and is_integer(value)


def check_ignore_index(ignore_index: Any) -> None:
    if not is_traced_integer(ignore_index):
        calls.check_ignore_index(ignore_index)


def flat_hidden(hidden: Any, dim: int) -> tuple[Array, tuple[int, ...]]:
    """Return hidden vectors as (N, D), and their leading axes."""
    hidden = array_of("hidden", hidden)
    calls.check_hidden(hidden.shape, dim, hidden.dtype, floating=is_floating(hidden))
    return hidden.reshape(-1, dim), hidden.shape[:-1]


def read_targets(targets: Any, leading: tuple[int, ...], vocab: int, ignore_index: int | None) -> Targets:
    """Separate words from padding and from ids outside the vocabulary.

    Raises:
        BadInput: The shape or dtype is wrong, or the host can read that a target is neither a word nor padding.
    """
    targets = array_of("targets", targets)
    calls.check_targets(targets.shape, leading, targets.dtype, integer=is_integer(targets))
    targets_N = targets.reshape(-1)
    if is_readable(targets_N) and not is_traced_integer(ignore_index):
        return _read(np.asarray(targets_N).astype(np.int64), vocab, ignore_index)
    # Compared in a dtype that has the ids of the vocabulary, negative numbers and `ignore_index`.
    signed_N = targets_N if targets_N.dtype in (jnp.int32, jnp.int64, jnp.uint64) else targets_N.astype(jnp.int32)
    inside_N = (signed_N >= 0) & (signed_N < vocab)
    words_N = jnp.where(inside_N, signed_N, 0).astype(jnp.int32)
    if ignore_index is None:
        return Targets(words_N, None, ~inside_N)
    real_N = signed_N != ignore_index
    return Targets(jnp.where(real_N, words_N, 0), real_N, ~inside_N & real_N)


def _read(array_N: np.ndarray, vocab: int, ignore_index: int | None) -> Targets:
    real_N = values.real_targets(array_N, vocab, ignore_index)
    words_N = jnp.asarray(np.where(real_N, array_N, 0).astype(np.int32))
    return Targets(words_N, None if real_N.all() else jnp.asarray(real_N))


def without_padding(hidden_ND: Array, real_N: Array | None) -> Array:
    """Return hidden vectors with zeros at padding, where NaN and infinity would reach the gradients of parameters."""
    return hidden_ND if real_N is None else jnp.where(real_N[:, None], hidden_ND, 0)


def check_token_weight(token_weight: Any, leading: tuple[int, ...]) -> Array:
    """Return (N,) checked weights of the tokens."""
    weight = array_of("token_weight", token_weight)
    calls.check_token_weight(weight.shape, leading, weight.dtype, floating=is_floating(weight))
    return weight.reshape(-1)


def check_uniforms(uniforms: Any, leading: tuple[int, ...], draws: int) -> Array:
    """Return (N, U) checked uniform numbers, at least in float32 and below 1 in that dtype too."""
    array = array_of("uniforms", uniforms)
    calls.check_uniforms(array.shape, leading, draws, array.dtype, floating=is_floating(array))
    if is_readable(array):  # by NumPy: while a function is traced, JAX would trace the comparison of constants too
        values.check_uniforms(np.asarray(array))
    return jnp.minimum(array.astype(wide(array.dtype)).reshape(-1, draws), values.BELOW_ONE)


def check_extra(name: str, value: Any, spec: LayerSpec, leading: tuple[int, ...]) -> Array:
    """Return a random input of a loss: word ids (S,), or (N, S) for each token, or (V,) numbers.

    Raises:
        BadInput: It has another shape or dtype, or the host can read that an id is not a word.
    """
    array = array_of(name, value)
    kinds = {"floating": is_floating(array), "integer": is_integer(array)}
    calls.check_input(name, array.shape, array.dtype, spec, leading, **kinds)
    extra = spec.definition.extra[name]
    if extra.for_each_word:
        return array
    if is_readable(array):
        values.check_ids(name, np.asarray(array), spec.vocab)
    ids = jnp.clip(array, 0, spec.vocab - 1).astype(jnp.int32)
    return ids.reshape(math.prod(leading), ids.shape[-1]) if extra.for_each_token(spec.options) else ids
