"""Connectionist temporal classification (Graves et al. 2006, equations 5 to 8) by a scan over frames, in log space.

Shape letters: B utterances, S frames, C classes, T labels.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls.on_jax.ops.arrays import Array, wide

_NEVER = -1e30  # log-probability of the impossible; finite, so that no gradient is NaN


def ctc_nll(logits_BSC: Array, frames_B: Array, labels_BT: Array, lengths_B: Array) -> Array:
    """Return (B,) -log P(labels | frames) in nats, over all alignments. The blank is the last class.

    Args:
        logits_BSC: Unnormalized scores.
        frames_B: Number of frames of each utterance, from 1. Further frames are not read.
        labels_BT: Class ids without blanks. Any class may follow the last label of an utterance.
        lengths_B: Number of labels of each utterance.

    Returns:
        The losses. The loss is 0, without a gradient, for an utterance with too few frames for its labels.
    """
    logits_BSC = logits_BSC.astype(wide(logits_BSC.dtype))
    (batch, frames, _), labels = logits_BSC.shape, labels_BT.shape[1]
    total_BS1 = jax.nn.logsumexp(logits_BSC, axis=2, keepdims=True)
    label_BST = jnp.broadcast_to(labels_BT[:, None], (batch, frames, labels))
    log_label_BST = jnp.take_along_axis(logits_BSC, label_BST, axis=2) - total_BS1
    log_blank_BS1 = logits_BSC[:, :, -1:] - total_BS1
    never_B1 = jnp.full((batch, 1), _NEVER, logits_BSC.dtype)
    # Log-weight of a step from one label to the next without a blank, which is impossible between equal labels.
    skip_BT = jnp.where(labels_BT[:, 1:] == labels_BT[:, :-1], _NEVER, 0)
    skip_BT = jnp.concatenate([never_B1, skip_BT], axis=1)

    # Log-probabilities of alignments that end in a blank after t labels, t = 0 .. T, and of those that end in label t.
    def frame(before: tuple[Array, Array], step: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
        (blank_BT, label_BT), (log_blank_B1, log_label_BT, real_B1) = before, step
        shifted_BT = jnp.concatenate([never_B1, label_BT], axis=1)
        after_blank_BT = jnp.logaddexp(blank_BT, shifted_BT) + log_blank_B1
        started_BT = jnp.logaddexp(blank_BT[:, :-1], shifted_BT[:, :-1] + skip_BT)
        after_label_BT = jnp.logaddexp(label_BT, started_BT) + log_label_BT
        return (jnp.where(real_B1, after_blank_BT, blank_BT), jnp.where(real_B1, after_label_BT, label_BT)), None

    start_BT = jnp.full((batch, labels + 1), _NEVER, logits_BSC.dtype)
    by_frame = (log_blank_BS1, log_label_BST, (jnp.arange(frames) < frames_B[:, None])[:, :, None])
    (blank_BT, label_BT), _ = lax.scan(
        frame, (start_BT.at[:, 0].set(0), start_BT[:, 1:]), jax.tree.map(lambda array: array.swapaxes(0, 1), by_frame)
    )
    ended_BT = jnp.logaddexp(blank_BT, jnp.concatenate([never_B1, label_BT], axis=1))
    losses_B = -jnp.take_along_axis(ended_BT, lengths_B[:, None], axis=1)[:, 0]
    return jnp.where(losses_B < -_NEVER / 2, losses_B, 0)
