"""Search of a binary tree by blocks of several levels."""

from __future__ import annotations

import math

import tensorflow as tf

from vocabench.impls.on_tensorflow.ops.tensors import Tensor, at_least_float32, best_by_id
from vocabench.impls.structures.path_blocks import PathBlocks


def path_beam(
    hidden_ND: Tensor, node_weight: Tensor, blocks: PathBlocks, vocab: int, k: int, width: int
) -> tuple[Tensor, Tensor]:
    """Return values and ids (N, K) of k likely words, keeping the `width` likeliest paths after each block."""
    node_BJ, exit_BP = (tf.constant(array, tf.int32) for array in (blocks.node_BJ, blocks.exit_BP))
    dtype, rows = at_least_float32(node_weight[:0]).dtype, tf.shape(hidden_ND)[0]
    none, certain = tf.cast(-math.inf, dtype), tf.cast(0.0, dtype)

    def is_open(value_NW: Tensor, at_NW: Tensor) -> Tensor:
        return (at_NW >= vocab) & (value_NW > none)

    def descend(value_NW: Tensor, at_NW: Tensor) -> tuple[Tensor, Tensor]:
        open_NW = is_open(value_NW, at_NW)
        block_NW = tf.where(open_NW, at_NW - vocab, 0)
        node_NWJ = tf.gather(node_BJ, block_NW)
        vectors_NWJD = tf.gather(node_weight, tf.maximum(node_NWJ, 0))
        score_NWJ = at_least_float32(tf.linalg.matvec(vectors_NWJD, hidden_ND[:, None]))
        left_NWJ = tf.where(node_NWJ < 0, certain, tf.math.log_sigmoid(score_NWJ))
        right_NWJ = tf.where(node_NWJ < 0, none, tf.math.log_sigmoid(-score_NWJ))
        path_NWP, first = tf.where(open_NW, value_NW, none)[:, :, None], 0
        while (end := 2 * first + 1) <= blocks.node_BJ.shape[1]:  # one level after the other
            sides = [path_NWP + turn_NWJ[:, :, first:end] for turn_NWJ in (left_NWJ, right_NWJ)]
            path_NWP, first = tf.reshape(tf.stack(sides, axis=3), [rows, width, 2 * (end - first)]), end
        values = tf.concat([tf.where(open_NW, none, value_NW), tf.reshape(path_NWP, [rows, -1])], axis=1)
        exits = tf.concat([at_NW, tf.reshape(tf.gather(exit_BP, block_NW), [rows, -1])], axis=1)
        value_NW, place_NW = tf.math.top_k(values, width)
        return value_NW, tf.gather(exits, place_NW, batch_dims=1)

    value_NW = tf.concat([tf.zeros([rows, 1], dtype), tf.fill([rows, width - 1], none)], axis=1)
    start = value_NW, tf.fill([rows, width], vocab)  # block 0
    value_NW, at_NW = tf.while_loop(lambda *state: tf.reduce_any(is_open(*state)), descend, start)
    return best_by_id(value_NW, at_NW, k)
