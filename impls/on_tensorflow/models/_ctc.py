"""Connectionist temporal classification (Graves et al. 2006, equations 5 to 8 and 16) in TensorFlow, in log space.

`tf.nn.ctc_loss` is not used, since it supports neither float64 nor utterances without labels, or takes seconds for a
small batch.

Shape letters: B utterances, S frames, U units including a blank, L labels, Z = 2 L + 1 labels with blanks around them.
"""

from __future__ import annotations

import tensorflow as tf

from vocabench.impls.on_tensorflow.ops.tensors import Tensor

_NEVER = -1e30  # log-probability of impossible alignments: finite, so that no difference of two is NaN


def nll(log_probs_BSU: Tensor, frames_B: Tensor, labels_BL: Tensor, lengths_B: Tensor) -> Tensor:
    """Return (B,) -log of the probability of all alignments of the labels, with a label or a blank in each frame.

    Args:
        log_probs_BSU: Log-probabilities of the units in each frame, the blank last; float32 or float64.
        frames_B: Number of frames of each utterance, from 1. Later frames are not read.
        labels_BL: Unit ids; any number beyond the last label of an utterance.
        lengths_B: Number of labels of each utterance.

    Returns:
        Nats; 0 without a gradient if there are fewer frames than labels and blanks between equal labels.
    """
    dtype, blank = log_probs_BSU.dtype, log_probs_BSU.shape[2] - 1
    labels_BL = tf.where(tf.sequence_mask(lengths_B, tf.shape(labels_BL)[1]), labels_BL, blank)
    pairs_BL2 = tf.stack([tf.fill(tf.shape(labels_BL), blank), labels_BL], axis=2)
    label_BZ = tf.pad(tf.reshape(pairs_BL2, [tf.shape(labels_BL)[0], -1]), [[0, 0], [0, 1]], constant_values=blank)
    # The blank between two labels may be skipped, unless they are equal.
    two_before_BZ = tf.pad(label_BZ[:, :-2], [[0, 0], [2, 0]], constant_values=blank)
    skips_BZ = _log(tf.not_equal(label_BZ, blank) & tf.not_equal(label_BZ, two_before_BZ), dtype)
    first_BZ, last_BZ = (
        _log(tf.one_hot(place_B, tf.shape(label_BZ)[1], True, False), dtype)
        for place_B in (tf.zeros_like(lengths_B), 2 * lengths_B)
    )
    real_SB1 = tf.transpose(tf.sequence_mask(frames_B, tf.shape(log_probs_BSU)[1]))[:, :, None]

    @tf.custom_gradient
    def nll_of(by_frame_SBZ: Tensor) -> tuple[Tensor, object]:
        forward_SBZ = _forward(by_frame_SBZ, real_SB1, skips_BZ, first_BZ)
        nll_B = -tf.reduce_logsumexp(_transition(forward_SBZ[-1], skips_BZ) + last_BZ, axis=1)
        possible_B = nll_B < -_NEVER / 2

        def gradient(dnll_B: Tensor) -> Tensor:
            # The backward recursion is the forward recursion over the reversed labels.
            reversed_skips_BZ = tf.reverse(tf.pad(skips_BZ[:, 2:], [[0, 0], [0, 2]], constant_values=_NEVER), [1])
            inputs = tf.reverse(by_frame_SBZ, [2]), real_SB1, reversed_skips_BZ, tf.reverse(last_BZ, [1])
            backward_SBZ = tf.reverse(_forward(*inputs, reverse=True), [2])
            share_SBZ = tf.exp(forward_SBZ + backward_SBZ - by_frame_SBZ + nll_B[:, None])
            return tf.where(real_SB1 & possible_B[:, None], -share_SBZ * dnll_B[:, None], tf.zeros([], dtype))

        return tf.where(possible_B, nll_B, tf.zeros([], dtype)), gradient

    return nll_of(tf.transpose(tf.gather(log_probs_BSU, label_BZ, axis=2, batch_dims=1), [1, 0, 2]))


def _forward(
    by_frame_SBZ: Tensor, real_SB1: Tensor, skips_BZ: Tensor, start_BZ: Tensor, *, reverse: bool = False
) -> Tensor:
    """Return (S, B, Z) log-probabilities of all alignments up to a frame that are at label Z in this frame."""

    def step(before_BZ: Tensor, frame: tuple[Tensor, Tensor]) -> Tensor:
        by_frame_BZ, real_B1 = frame
        return tf.where(real_B1, _transition(before_BZ, skips_BZ) + by_frame_BZ, before_BZ)

    return tf.scan(step, (by_frame_SBZ, real_SB1), start_BZ, reverse=reverse)


def _transition(before_BZ: Tensor, skips_BZ: Tensor) -> Tensor:
    """Return (B, Z) log-probabilities of arriving at each label: from itself, the one before, or the second before."""
    padded = tf.pad(before_BZ, [[0, 0], [2, 0]], constant_values=_NEVER)
    return tf.reduce_logsumexp(tf.stack([before_BZ, padded[:, 1:-1], padded[:, :-2] + skips_BZ]), axis=0)


def _log(possible: Tensor, dtype: tf.DType) -> Tensor:
    """Return 0 where a condition is true, and the log-probability of the impossible elsewhere."""
    return tf.where(possible, tf.zeros([], dtype), tf.constant(_NEVER, dtype))
