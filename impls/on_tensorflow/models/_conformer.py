"""A conformer encoder in TensorFlow. See `impls/models/recognizer.py` for the formulas.

Shape letters: B utterances, F frames of features, M mels, S frames after the convolutions, D width, C channels, H
heads, E = D / H, P = 2 S offsets between frames.
"""

from __future__ import annotations

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
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, at_least_float32, traced


def encode(params: Tensors, features_BFM: Tensor, frames_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return (B, S, D) encoded frames, and (B, S) which of them are real.

    Args:
        params: Parameters of the recognizer.
        features_BFM: Features of the audio frames.
        frames_B: Number of real frames after the convolutions.
    """
    x_BSD = _front(params, features_BFM)
    size = tf.shape(x_BSD)[1]
    offsets_PD = sinusoids(tf.range(size - 1, -size - 1, -1), x_BSD.shape[2], x_BSD.dtype)
    real_BS = tf.sequence_mask(frames_B, size)
    for block in blocks_of(params, "encoder"):
        x_BSD = _block(block, x_BSD, real_BS, offsets_PD)
    return x_BSD, real_BS


def _front(params: Tensors, features_BFM: Tensor) -> Tensor:
    """Return the (B, S, D) frames after the convolutions."""
    x_BFMC = features_BFM[:, :, :, None]
    for name in ("front.conv1", "front.conv2"):
        # Channels are last, the only order that TensorFlow supports on a CPU.
        filters_33CC = tf.transpose(params[f"{name}_weight"], [2, 3, 1, 0])
        x_BFMC = tf.nn.conv2d(x_BFMC, filters_33CC, strides=2, padding="VALID")
        x_BFMC = tf.nn.relu(tf.nn.bias_add(x_BFMC, params[f"{name}_bias"]))
    weight_DX = params["front.out_weight"]
    (dim, width), channels = weight_DX.shape, x_BFMC.shape[3]
    # The weights are transposed to this order, since they are smaller than the frames.
    weight_DMC = tf.transpose(tf.reshape(weight_DX, [dim, channels, -1]), [0, 2, 1])
    out = {"out_weight": tf.reshape(weight_DMC, [dim, width]), "out_bias": params["front.out_bias"]}
    shape = tf.shape(x_BFMC)
    flat_BSX = tf.reshape(x_BFMC, [shape[0], shape[1], width])
    return linear(out, "out", flat_BSX) * dim**0.5


@traced
def _block(params: Tensors, x_BSD: Tensor, real_BS: Tensor, offsets_PD: Tensor) -> Tensor:
    x_BSD += feed_forward(params, "feed1", x_BSD, tf.nn.silu) / 2
    x_BSD += _relative_attention(params, norm(params, "attention.norm", x_BSD), real_BS, offsets_PD)
    x_BSD += _convolution(params, norm(params, "conv.norm", x_BSD), real_BS)
    x_BSD += feed_forward(params, "feed2", x_BSD, tf.nn.silu) / 2
    return norm(params, "norm", x_BSD)


def _relative_attention(params: Tensors, x_BSD: Tensor, real_BS: Tensor, offsets_PD: Tensor) -> Tensor:
    heads, width = params["attention.content_bias"].shape
    query_BHSE, key_BHSE, value_BHSE = (
        split(linear(params, f"attention.{part}", x_BSD), heads) for part in ("query", "key", "value")
    )
    content_BHSE, position_BHSE = (
        (query_BHSE + params[f"attention.{kind}_bias"][:, None]) * width**-0.5 for kind in ("content", "position")
    )
    offsets_PD = tf.matmul(offsets_PD, params["attention.position_weight"], transpose_b=True)
    by_offset_BHSP = tf.matmul(position_BHSE, split(offsets_PD[None], heads), transpose_b=True)
    scores_BHSS = tf.matmul(content_BHSE, key_BHSE, transpose_b=True) + _by_frame(by_offset_BHSP)
    mask_B11S = additive_mask(real_BS, x_BSD.dtype)[:, None, None]
    return linear(params, "attention.out", read(scores_BHSS, mask_B11S, value_BHSE))


def _by_frame(scores_BHSP: Tensor) -> Tensor:
    """Return the (B, H, S, S) scores of frames i with offsets i - j, from the scores with all offsets S - 1 down to -S.

    The first offset of each row is one place further left than in the row above. In rows that are one element shorter,
    all first offsets are in the same column.
    """
    batch, heads, size, _ = tf.unstack(tf.shape(scores_BHSP))
    flat_BHX = tf.reshape(scores_BHSP, [batch, heads, -1])[:, :, size - 1 : -1]
    return tf.reshape(flat_BHX, [batch, heads, size, -1])[:, :, :, :size]


def _convolution(params: Tensors, x_BSD: Tensor, real_BS: Tensor) -> Tensor:
    kept_BSD, gate_BSD = tf.split(linear(params, "conv.in", x_BSD), 2, axis=2)
    gated_BSD = tf.where(real_BS[:, :, None], kept_BSD * tf.sigmoid(gate_BSD), tf.zeros([], x_BSD.dtype))
    # The convolution sums in at least float32.
    filters_1KD1 = tf.transpose(at_least_float32(params["conv.depth_weight"]))[None, :, :, None]
    mixed_B1SD = tf.nn.depthwise_conv2d(at_least_float32(gated_BSD)[:, None], filters_1KD1, [1, 1, 1, 1], "SAME")
    mixed_BSD = tf.nn.bias_add(tf.cast(mixed_B1SD[:, 0], x_BSD.dtype), params["conv.depth_bias"])
    return linear(params, "conv.out", tf.nn.silu(norm(params, "conv.mid", mixed_BSD)))
