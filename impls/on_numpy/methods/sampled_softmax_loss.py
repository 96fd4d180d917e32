"""Sampled softmax as TensorFlow's own `sampled_softmax_loss` computes it, a peer of `sampled_softmax`.

It is the same function as `sampled_softmax` with the same sampled words. TensorFlow's implementation is therefore
checked against the same definition and timed next to ours.
"""

from __future__ import annotations

import dataclasses

from vocabench.impls.on_numpy.methods import sampled_softmax

DEFINITION = dataclasses.replace(
    sampled_softmax.DEFINITION,
    name="sampled_softmax_loss",
    paper="TensorFlow, tf.nn.sampled_softmax_loss, after Jean et al., 2015",
)

LAYER = sampled_softmax.SampledSoftmax
