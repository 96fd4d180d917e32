"""Components of the blocks of a conformer and a transformer in TensorFlow.

The parameters of all blocks of a stack are stacked (`impls/models/stacks.py`), so that the optimizer has no more arrays
than one block has. A block is traced only once.

Shape letters: B sequences, T query positions, S key positions, D width, H heads, E = D / H.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from vocabench.impls.models.recognizer import NORM_EPSILON, frequencies
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, at_least_float32


def blocks_of(params: Tensors, stack: str) -> list[Tensors]:
    """Return the parameters of each block of "encoder" or "decoder", by their names within a block."""
    prefix = f"{stack}.*."
    parts = {name.removeprefix(prefix): tf.unstack(value) for name, value in params.items() if name.startswith(prefix)}
    return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]


def linear(params: Tensors, name: str, x: Tensor) -> Tensor:
    """Return an affine map of the last dimension."""
    weight, bias = params[f"{name}_weight"], params[f"{name}_bias"]
    outputs, inputs = weight.shape
    # One product, since a batched one would compute the gradient of the weight once for each sequence.
    flat = tf.nn.bias_add(tf.matmul(tf.reshape(x, [-1, inputs]), weight, transpose_b=True), bias)
    return tf.reshape(flat, tf.concat([tf.shape(x)[:-1], [outputs]], axis=0))


def norm(params: Tensors, name: str, x: Tensor) -> Tensor:
    """Normalize the last dimension by its mean and variance, in at least float32."""
    wide = at_least_float32(x)
    mean, variance = tf.nn.moments(wide, axes=[-1], keepdims=True)
    unit = (wide - mean) * tf.math.rsqrt(variance + NORM_EPSILON)
    return tf.cast(unit, x.dtype) * params[f"{name}_scale"] + params[f"{name}_bias"]


def feed_forward(params: Tensors, name: str, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a layer norm followed by two affine maps with an activation between them."""
    inner = activation(linear(params, f"{name}.in", norm(params, f"{name}.norm", x)))
    return linear(params, f"{name}.out", inner)


def split(x_BTD: Tensor, heads: int) -> Tensor:
    """Split vectors by head, into (B, H, T, E)."""
    by_head = tf.reshape(x_BTD, [tf.shape(x_BTD)[0], -1, heads, x_BTD.shape[2] // heads])
    return tf.transpose(by_head, [0, 2, 1, 3])


def sinusoids(positions_P: Tensor, dim: int, dtype: tf.DType) -> Tensor:
    """Return the (P, D) position encodings that `vocabench.impls.models.recognizer` defines."""
    angle_PH = tf.cast(positions_P, tf.float64)[:, None] * frequencies(dim)
    return tf.cast(tf.concat([tf.sin(angle_PH), tf.cos(angle_PH)], axis=1), dtype)


def additive_mask(visible: Tensor, dtype: tf.DType) -> Tensor:
    """Return the mask that `read` adds to scores of `dtype`: 0 for visible positions, and -inf for all others."""
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    return tf.where(visible, tf.zeros([], wide), tf.constant(-float("inf"), wide))


def read(scores_BHTS: Tensor, mask: Tensor, value_BHSE: Tensor) -> Tensor:
    """Return (B, T, D) means of the values of each head, weighted by a softmax of its scores in at least float32."""
    weight_BHTS = tf.nn.softmax(at_least_float32(scores_BHTS) + mask)
    mixed_BHTE = tf.matmul(tf.cast(weight_BHTS, value_BHSE.dtype), value_BHSE)
    _, heads, _, width = value_BHSE.shape
    shape = tf.shape(mixed_BHTE)
    return tf.reshape(tf.transpose(mixed_BHTE, [0, 2, 1, 3]), [shape[0], shape[2], heads * width])
