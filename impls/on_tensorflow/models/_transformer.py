"""A pre-norm transformer decoder over the frames of any encoder in TensorFlow.

See `impls/models/recognizer.py` for the formulas.

Shape letters: B sequences, S frames, T units, P units including earlier ones, D width, H heads, E = D / H, R rows that
are decoded, the same number for each sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from vocabench.impls.on_tensorflow.models._blocks import (
    additive_mask,
    blocks_of,
    feed_forward,
    linear,
    norm,
    read,
    sinusoids,
    split,
)
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, look_up, traced

KeysValues = tuple[Tensor, Tensor]  # (B, H, S, E) each


def remember(params: Tensors, frames_BSD: Tensor, heads: int) -> list[KeysValues]:
    """Return the keys and values of the encoder's frames for each block, which do not depend on the units."""
    return [_keys_values(block, "cross", frames_BSD, heads) for block in blocks_of(params, "decoder")]


def nothing_read(params: Tensors, rows: Tensor, heads: int) -> list[KeysValues]:
    """Return the keys and values before the first unit: none."""
    scale_LD = params["decoder.*.self.norm_scale"]
    blocks, dim = scale_LD.shape
    nothing_RH0E = tf.zeros([rows, heads, 0, dim // heads], scale_LD.dtype)
    return [(nothing_RH0E, nothing_RH0E)] * blocks


def decode(
    params: Tensors,
    ids_RT: Tensor,
    memory: Sequence[KeysValues],
    real_BS: Tensor,
    past: Sequence[KeysValues],
) -> tuple[Tensor, list[KeysValues]]:
    """Return (R, T, D) hidden vectors after each unit, and the keys and values to pass as `past` with the next units.

    Args:
        params: Parameters of the recognizer.
        ids_RT: Unit ids.
        memory: The result of `remember`.
        real_BS: Which of the encoder's frames are real.
        past: Keys and values of earlier units, from the previous call or `nothing_read`.
    """
    embedding_VD = params["embedding"]
    dim, dtype = embedding_VD.shape[1], embedding_VD.dtype
    start = tf.shape(past[0][0])[2]
    place_T = tf.range(start, start + tf.shape(ids_RT)[1])
    x_RTD = look_up(embedding_VD, ids_RT) * dim**0.5 + sinusoids(place_T, dim, dtype)
    visible_TP = tf.range(place_T[-1] + 1) <= place_T[:, None]
    masks = additive_mask(visible_TP, dtype), additive_mask(real_BS, dtype)[:, None, None]
    keys_values = []
    for block, frames, before in zip(blocks_of(params, "decoder"), memory, past, strict=True):
        x_RTD, read_so_far = _block(block, x_RTD, frames, before, *masks)
        keys_values.append(read_so_far)
    return norm(params, "decoder.norm", x_RTD), keys_values


@traced
def _block(
    params: Tensors, x_RTD: Tensor, frames: KeysValues, past: KeysValues, mask_TP: Tensor, mask_B11S: Tensor
) -> tuple[Tensor, KeysValues]:
    heads, dim = frames[0].shape[1], x_RTD.shape[2]
    normed_RTD = norm(params, "self.norm", x_RTD)
    here = _keys_values(params, "self", normed_RTD, heads)
    read_so_far = tf.concat([past[0], here[0]], axis=2), tf.concat([past[1], here[1]], axis=2)
    x_RTD += _attend(params, "self", normed_RTD, read_so_far, mask_TP)
    # To its frames, the rows of a sequence are like the units of one row, so the frames are not copied.
    x_BWD = tf.reshape(x_RTD, [tf.shape(mask_B11S)[0], -1, dim])
    x_BWD += _attend(params, "cross", norm(params, "cross.norm", x_BWD), frames, mask_B11S)
    x_BWD += feed_forward(params, "feed", x_BWD, tf.nn.relu)
    return tf.reshape(x_BWD, tf.shape(x_RTD)), read_so_far


def _keys_values(params: Tensors, name: str, x_BSD: Tensor, heads: int) -> KeysValues:
    return split(linear(params, f"{name}.key", x_BSD), heads), split(linear(params, f"{name}.value", x_BSD), heads)


def _attend(params: Tensors, name: str, x_BTD: Tensor, memory: KeysValues, mask: Tensor) -> Tensor:
    """Return (B, T, D) results of multi-head attention."""
    key_BHSE, value_BHSE = memory
    _, heads, _, width = key_BHSE.shape
    query_BHTE = split(linear(params, f"{name}.query", x_BTD), heads) * width**-0.5
    return linear(params, f"{name}.out", read(tf.matmul(query_BHTE, key_BHSE, transpose_b=True), mask, value_BHSE))
