"""Connectionist temporal classification (Graves et al. 2006, equations 5 to 8 and 16) in TensorFlow, in log space.

`tf.nn.ctc_loss` is no help: it refuses float64 and utterances without labels, or takes seconds for a small batch.

Shape letters: B utterances, S frames, U units and a blank, L labels, Z = 2 L + 1 labels with blanks around.
"""

from __future__ import annotations

import tensorflow as tf

from vocabench.impls.on_tensorflow.layer import Tensor

_NEVER = -1e30  # log-probability of what cannot be: finite, so that no difference of two is NaN


def nll(log_probs_BSU: Tensor, frames_B: Tensor, labels_BL: Tensor, lengths_B: Tensor) -> Tensor:
    """(B,) -log of the probability of all ways to say the labels, a label or a blank in each frame.

    Args:
        log_probs_BSU: Of each frame, over the units and, as the last, the blank; float32 or float64.
        frames_B: Frames of each utterance, from 1; those beyond are not read.
        labels_BL: Unit ids; beyond an utterance's last any number.
        lengths_B: Labels of each utterance.

    Returns:
        Nats; 0 without a gradient where there are fewer frames than labels and blanks between equal labels.
    """
    kind, blank = log_probs_BSU.dtype, log_probs_BSU.shape[2] - 1
    labels_BL = tf.where(tf.sequence_mask(lengths_B, tf.shape(labels_BL)[1]), labels_BL, blank)
    pairs_BL2 = tf.stack([tf.fill(tf.shape(labels_BL), blank), labels_BL], axis=2)
    said_BZ = tf.pad(tf.reshape(pairs_BL2, [tf.shape(labels_BL)[0], -1]), [[0, 0], [0, 1]], constant_values=blank)
    # A blank between two labels may be left out, unless they are equal.
    two_before_BZ = tf.pad(said_BZ[:, :-2], [[0, 0], [2, 0]], constant_values=blank)
    leaps_BZ = _log(tf.not_equal(said_BZ, blank) & tf.not_equal(said_BZ, two_before_BZ), kind)
    first_BZ, last_BZ = (
        _log(tf.one_hot(place_B, tf.shape(said_BZ)[1], True, False), kind)
        for place_B in (tf.zeros_like(lengths_B), 2 * lengths_B)
    )
    real_SB1 = tf.transpose(tf.sequence_mask(frames_B, tf.shape(log_probs_BSU)[1]))[:, :, None]

    @tf.custom_gradient
    def aligned(by_frame_SBZ: Tensor) -> tuple[Tensor, object]:
        forward_SBZ = _reach(by_frame_SBZ, real_SB1, leaps_BZ, first_BZ)
        nll_B = -tf.reduce_logsumexp(_arrive(forward_SBZ[-1], leaps_BZ) + last_BZ, axis=1)
        possible_B = nll_B < -_NEVER / 2

        def gradient(dnll_B: Tensor) -> Tensor:
            # From the end, the ways back are ways forward through the labels in reverse.
            back_leaps_BZ = tf.reverse(tf.pad(leaps_BZ[:, 2:], [[0, 0], [0, 2]], constant_values=_NEVER), [1])
            from_end = tf.reverse(by_frame_SBZ, [2]), real_SB1, back_leaps_BZ, tf.reverse(last_BZ, [1])
            backward_SBZ = tf.reverse(_reach(*from_end, reverse=True), [2])
            share_SBZ = tf.exp(forward_SBZ + backward_SBZ - by_frame_SBZ + nll_B[:, None])
            return tf.where(real_SB1 & possible_B[:, None], -share_SBZ * dnll_B[:, None], tf.zeros([], kind))

        return tf.where(possible_B, nll_B, tf.zeros([], kind)), gradient

    return aligned(tf.transpose(tf.gather(log_probs_BSU, said_BZ, axis=2, batch_dims=1), [1, 0, 2]))


def _reach(
    by_frame_SBZ: Tensor, real_SB1: Tensor, leaps_BZ: Tensor, start_BZ: Tensor, *, reverse: bool = False
) -> Tensor:
    """(S, B, Z) log-probability of all ways up to a frame that say in it what stands at Z."""

    def step(before_BZ: Tensor, frame: tuple[Tensor, Tensor]) -> Tensor:
        by_frame_BZ, real_B1 = frame
        return tf.where(real_B1, _arrive(before_BZ, leaps_BZ) + by_frame_BZ, before_BZ)

    return tf.scan(step, (by_frame_SBZ, real_SB1), start_BZ, reverse=reverse)


def _arrive(before_BZ: Tensor, leaps_BZ: Tensor) -> Tensor:
    """(B, Z) of all ways to come to each place: from itself, from the one before, by a leap from the second before."""
    padded = tf.pad(before_BZ, [[0, 0], [2, 0]], constant_values=_NEVER)
    return tf.reduce_logsumexp(tf.stack([before_BZ, padded[:, 1:-1], padded[:, :-2] + leaps_BZ]), axis=0)


def _log(allowed: Tensor, kind: tf.DType) -> Tensor:
    return tf.where(allowed, tf.zeros([], kind), tf.constant(_NEVER, kind))
