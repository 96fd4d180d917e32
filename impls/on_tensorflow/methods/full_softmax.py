"""Full softmax in TensorFlow: one product and the fused cross-entropy. See `impls/on_numpy/methods/full_softmax.py`."""

from __future__ import annotations

import tensorflow as tf

from vocabench.impls.on_tensorflow.hooks import OWN_KERNELS, XLA
from vocabench.impls.on_tensorflow.layer import OutputLayer
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, at_least_float32, cross_entropy, look_up, product


class FullSoftmax(OutputLayer):
    """log P(w | h) = h.W_w + b_w - logsumexp(h W^T + b). Weights: `weight` (V, D), `bias` (V,), which the option
    `bias=False` leaves out.
    """

    FORMS = (XLA, OWN_KERNELS)

    def _word_slots(self) -> Tensors:
        return {"weight": None}

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        return at_least_float32(product(hidden_ND, self.value_of("weight")) + self.bias_of())

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return cross_entropy(self._logits(hidden_ND), targets_N)

    def _target_logits(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        weight_ND = at_least_float32(look_up(self.value_of("weight"), targets_N))
        bias_N = at_least_float32(look_up(self.bias_of(), targets_N))
        return tf.reduce_sum(at_least_float32(hidden_ND) * weight_ND, axis=1) + bias_N

    def _mean_logits(self, hidden_ND: Tensor) -> Tensor:
        mean_D = tf.reduce_mean(at_least_float32(tf.convert_to_tensor(self.value_of("weight"))), axis=0)
        bias = tf.reduce_mean(at_least_float32(tf.convert_to_tensor(self.bias_of())))
        return tf.linalg.matvec(at_least_float32(hidden_ND), mean_D) + bias

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        return tf.nn.log_softmax(self._logits(hidden_ND))


LAYER = FullSoftmax
