"""Sampled softmax in TensorFlow. See `impls/on_numpy/methods/sampled_softmax.py` for the definition."""

from __future__ import annotations

import tensorflow as tf

from vocabench.impls.on_tensorflow.ops.tensors import Tensor
from vocabench.impls.on_tensorflow.sampled import SampledLayer


class SampledSoftmax(SampledLayer):
    """Cross-entropy over the target and the sampled words, each score minus the logarithm of the expected count."""

    def contrast(self, target_N: Tensor, sampled_NS: Tensor) -> Tensor:
        return tf.reduce_logsumexp(tf.concat([target_N[:, None], sampled_NS], axis=1), axis=1) - target_N


LAYER = SampledSoftmax
