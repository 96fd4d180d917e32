"""The inputs of a layer's calls: checked, and flattened to one axis of tokens.

Values are read where that costs next to nothing: in eager calls on a CPU. In traced functions, sizes may be unknown,
and the loss of a target outside the vocabulary is NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from vocabench.impls import calls
from vocabench.impls import targets as values
from vocabench.impls.errors import BadInput
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, at_least_float32, in_dtype
from vocabench.impls.spec import LayerSpec


class Targets(NamedTuple):
    """The targets of a batch.

    Attributes:
        words_N: int32 word ids; some word of the vocabulary at padding and where a target is outside the vocabulary.
        real_N: False at padding; None if there is none for certain.
        outside_N: True where a target is outside the vocabulary; None if all are inside for certain.
    """

    words_N: Tensor
    real_N: Tensor | None = None
    outside_N: Tensor | None = None


class Leading(NamedTuple):
    """The axes of hidden vectors before the last.

    Attributes:
        sizes: Their sizes, None where a size is not known while tracing.
        shape: The same as a tensor, or as a list if all are known.
    """

    sizes: tuple[int | None, ...]
    shape: Tensor | list[int]

    def restore(self, array_N: Tensor, *last: int) -> Tensor:
        """Return an array (N, ...) with the leading axes instead of N."""
        if len(self.sizes) == 1:
            return array_N
        if isinstance(self.shape, list):
            return tf.reshape(array_N, np.array([*self.shape, *last], np.int32))
        return tf.reshape(array_N, tf.concat([self.shape, list(last)], axis=0) if last else self.shape)


def tensor_of(name: str, value: Any) -> Tensor:
    """Return `value` as a tensor.

    Raises:
        BadInput: It is not one.
    """
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        raise BadInput(f"{name} is a {type(value).__name__}: allowed: a tensor") from None


def is_readable(tensor: Tensor) -> bool:
    """Return whether the host can read the values at once."""
    return tf.executing_eagerly() and hasattr(tensor, "numpy") and "GPU" not in tensor.device


def sizes_of(tensor: Tensor) -> tuple[int | None, ...]:
    return tuple(tensor.shape.as_list())


def flat_hidden(hidden: Any, dim: int, dtype: tf.DType) -> tuple[Tensor, Leading]:
    """Return hidden vectors as (N, D) in the dtype of the weights, and their leading axes."""
    hidden = tensor_of("hidden", hidden)
    sizes = sizes_of(hidden)
    calls.check_hidden(sizes, dim, hidden.dtype.name, floating=hidden.dtype.is_floating)
    leading = sizes[:-1]
    shape = list(leading) if None not in leading else tf.shape(hidden)[:-1]
    hidden_ND = hidden if len(leading) == 1 else tf.reshape(hidden, [-1, dim])
    return in_dtype(hidden_ND, dtype), Leading(leading, shape)  # type: ignore[arg-type]


def read_targets(targets: Any, leading: Leading, vocab: int, ignore_index: int | None) -> Targets:
    """Separate words from padding and from ids outside the vocabulary.

    Raises:
        BadInput: The shape or dtype is wrong, or the host can read that a target is neither a word nor padding.
    """
    targets = tensor_of("targets", targets)
    calls.check_targets(sizes_of(targets), leading.sizes, targets.dtype.name, integer=targets.dtype.is_integer)
    targets_N = tf.reshape(targets, [-1]) if len(leading.sizes) != 1 else targets
    if is_readable(targets_N):
        return _read(targets_N, vocab, ignore_index)
    if targets_N.dtype not in (tf.int32, tf.int64):
        targets_N = tf.cast(targets_N, tf.int64)
    if None in leading.sizes and not all(size is not None for size in sizes_of(targets)):
        check = tf.debugging.assert_equal(
            tf.shape(targets), leading.shape, message="targets and hidden have unlike leading axes"
        )
        with tf.control_dependencies([check] if check is not None else []):
            targets_N = tf.identity(targets_N)
    inside_N: Any = (targets_N >= 0) & (targets_N < vocab)
    real_N = None if ignore_index is None else tf.not_equal(targets_N, tf.cast(ignore_index, targets_N.dtype))
    known_N = inside_N if real_N is None else inside_N & real_N
    words_N = tf.cast(tf.where(known_N, targets_N, tf.zeros_like(targets_N)), tf.int32)
    outside_N = ~inside_N if real_N is None else ~inside_N & real_N
    return Targets(words_N, real_N, outside_N)


def _read(targets_N: Tensor, vocab: int, ignore_index: int | None) -> Targets:
    array_N = targets_N.numpy().astype(np.int64)
    real_N = values.real_targets(array_N, vocab, ignore_index)
    if real_N.all():
        return Targets(in_dtype(targets_N, tf.int32))
    return Targets(tf.constant(np.where(real_N, array_N, 0), tf.int32), tf.constant(real_N))


def without_padding(hidden_ND: Tensor, real_N: Tensor | None) -> Tensor:
    """Return hidden vectors with zeros at padding, where NaN and infinity would reach the gradients of weights."""
    return hidden_ND if real_N is None else tf.where(real_N[:, None], hidden_ND, tf.zeros_like(hidden_ND))


def check_token_weight(token_weight: Any, leading: Leading) -> Tensor:
    """Return (N,) checked weights of the tokens."""
    weight = tensor_of("token_weight", token_weight)
    calls.check_token_weight(sizes_of(weight), leading.sizes, weight.dtype.name, floating=weight.dtype.is_floating)
    return tf.reshape(weight, [-1])


def check_uniforms(uniforms: Any, leading: Leading, draws: int) -> Tensor:
    """Return (N, U) checked uniform numbers, at least in float32 and below 1 in that dtype too."""
    array = tensor_of("uniforms", uniforms)
    calls.check_uniforms(sizes_of(array), leading.sizes, draws, array.dtype.name, floating=array.dtype.is_floating)
    array_NU = tf.reshape(at_least_float32(array), [-1, draws])
    if is_readable(array_NU):
        values.check_uniforms(array_NU.numpy())
    return tf.minimum(array_NU, tf.cast(values.BELOW_ONE, array_NU.dtype))


def check_extra(name: str, value: Any, spec: LayerSpec, leading: Leading) -> Tensor:
    """Return a random input of a loss: word ids (S,), or (N, S) for each token, or (V,) numbers.

    Raises:
        BadInput: It has another shape or dtype, or the host can read that an id is not a word.
    """
    array = tensor_of(name, value)
    kinds = {"floating": array.dtype.is_floating, "integer": array.dtype.is_integer}
    calls.check_input(name, sizes_of(array), array.dtype.name, spec, leading.sizes, **kinds)
    extra = spec.definition.extra[name]
    if extra.for_each_word:
        return array
    if is_readable(array):
        values.check_ids(name, array.numpy(), spec.vocab)
    ids = tf.clip_by_value(in_dtype(array, tf.int32), 0, spec.vocab - 1)
    return _for_each_token(name, ids, leading) if extra.for_each_token(spec.options) else ids


def _for_each_token(name: str, ids: Tensor, leading: Leading) -> Tensor:
    """Return ids (N, S), after a check of N where it is known only when the function runs."""
    if len(ids.shape) != 2:
        ids = tf.reshape(ids, [-1, tf.shape(ids)[-1]])
    if None not in (*leading.sizes, ids.shape[0]):
        return ids
    message = f"{name} and hidden have unlike numbers of tokens"
    check = tf.debugging.assert_equal(tf.shape(ids)[0], tf.reduce_prod(leading.shape), message=message)
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(ids)
