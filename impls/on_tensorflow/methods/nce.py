"""Noise-contrastive estimation in TensorFlow. See `impls/on_numpy/methods/nce.py` for the definition."""

from __future__ import annotations

import tensorflow as tf

from vocabench.impls.on_tensorflow.ops.tensors import Tensor
from vocabench.impls.on_tensorflow.sampled import SampledLayer


class NoiseContrastiveEstimation(SampledLayer):
    """-log sigma(x_t) - sum over the sampled words of log sigma(-x_w), with x = s - log Z - log expected count."""

    def contrast(self, target_N: Tensor, sampled_NS: Tensor) -> Tensor:
        return tf.nn.softplus(-target_N) + tf.reduce_sum(tf.nn.softplus(sampled_NS), axis=1)


LAYER = NoiseContrastiveEstimation
