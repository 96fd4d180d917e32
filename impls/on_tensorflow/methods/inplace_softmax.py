"""Full softmax that stores only the exponentials, in TensorFlow. See `impls/on_numpy/methods/inplace_softmax.py`."""

from __future__ import annotations

import tensorflow as tf

from vocabench.impls.on_tensorflow.methods.full_softmax import FullSoftmax
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, at_least_float32, product


class InplaceSoftmax(FullSoftmax):
    """Full softmax that stores only the exponentials for the gradient. In half precision it is plain full softmax.

    Weights: `weight` (V, D), `bias` (V,).
    """

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        weight_VD, bias_V = map(tf.convert_to_tensor, (self.value_of("weight"), self.bias_of()))
        if weight_VD.dtype != at_least_float32(weight_VD[:0]).dtype:
            return super()._nll(hidden_ND, targets_N)
        targets_N1 = tf.cast(targets_N, tf.int32)[:, None]

        @tf.custom_gradient
        def nll(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor) -> tuple[Tensor, object]:
            rows_ND, offset_N = tf.gather_nd(weight_VD, targets_N1), tf.gather_nd(bias_V, targets_N1)
            logits_NV = product(hidden_ND, weight_VD) + bias_V
            highest_N = tf.reduce_max(logits_NV, axis=1)
            exp_NV = tf.exp(logits_NV - highest_N[:, None])  # in the memory of the logits, which nothing reads any more
            sum_N = tf.reduce_sum(exp_NV, axis=1)

            def gradient(dnll_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                dnll_N1, scale_N1 = dnll_N[:, None], (dnll_N / sum_N)[:, None]
                dhidden_ND = (exp_NV @ weight_VD) * scale_N1 - rows_ND * dnll_N1
                dweight_VD = tf.matmul(exp_NV, hidden_ND * scale_N1, transpose_a=True)
                dbias_V = tf.linalg.matvec(exp_NV, scale_N1[:, 0], transpose_a=True)
                return (
                    dhidden_ND,
                    tf.tensor_scatter_nd_sub(dweight_VD, targets_N1, hidden_ND * dnll_N1),
                    tf.tensor_scatter_nd_sub(dbias_V, targets_N1, dnll_N),
                )

            target_N = tf.reduce_sum(hidden_ND * rows_ND, axis=1) + offset_N
            return highest_N + tf.math.log(sum_N) - target_N, gradient

        return nll(tf.cast(hidden_ND, weight_VD.dtype), weight_VD, bias_V)

    def formulation(self) -> str:
        return f"exponentials kept for the gradient; {self.form}"


LAYER = InplaceSoftmax
