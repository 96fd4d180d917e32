"""Full softmax in TensorFlow: one product and the fused cross-entropy. See `impls/on_numpy/methods/full_softmax.py`."""

from __future__ import annotations

import tensorflow as tf

from vocabench.impls.on_tensorflow.layer import (
    OWN_KERNELS,
    XLA,
    OutputLayer,
    Tensor,
    at_least_float32,
    cross_entropy,
    product,
)


class FullSoftmax(OutputLayer):
    """log P(w | h) = h.W_w + b_w - logsumexp(h W^T + b). Weights: `weight` (V, D), `bias` (V,)."""

    FORMS = (XLA, OWN_KERNELS)

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        return at_least_float32(product(hidden_ND, self.value_of("weight")) + self.value_of("bias"))

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return cross_entropy(self._logits(hidden_ND), targets_N)

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        return tf.nn.log_softmax(self._logits(hidden_ND))


LAYER = FullSoftmax
