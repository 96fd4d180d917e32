"""TensorFlow's own sampled softmax. See `impls/on_numpy/methods/sampled_softmax_loss.py`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from vocabench.impls.on_tensorflow.methods.full_softmax import FullSoftmax
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, at_least_float32
from vocabench.impls.spec import LayerSpec


@tf.custom_gradient
def _with_dense_gradient(parameter: Tensor) -> tuple[Tensor, object]:
    """Return a parameter whose gradient is dense, as in all layers here, although TensorFlow looks up its rows."""
    return tf.convert_to_tensor(parameter), tf.convert_to_tensor


class SampledSoftmaxLoss(FullSoftmax):
    """`tf.nn.sampled_softmax_loss` over given words.

    Call `layer(hidden_ND, targets_N, sampled_ids=ids_S)`, with `correction=correction_V` if the batch has its own.

    Weights: `weight` (V, D), `bias` (V,).
    """

    FORMS = ()  # XLA does not implement the look-up of accidental hits

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        super().__init__(spec, **keyword)
        dtype = at_least_float32(tf.zeros(0, spec.storage)).dtype
        self.expected = tf.cast(tf.exp(spec.structure["correction"]), dtype)

    def _training_losses(  # type: ignore[override]
        self, hidden_ND: Tensor, targets_N: Tensor, *, sampled_ids: Tensor, correction: Tensor | None = None
    ) -> Tensor:
        expected_V = self.expected if correction is None else tf.cast(tf.exp(correction), self.expected.dtype)
        weight_VD, bias_V = map(_with_dense_gradient, (self.value_of("weight"), self.bias_of()))
        # TensorFlow removes only one hit of a word. A word drawn m times is therefore passed once, with its expected
        # count divided by m: e^(s - log(E / m)) = m e^(s - log E).
        words_U, _, times_U = tf.unique_with_counts(sampled_ids)
        # It computes in the dtype of the hidden vectors, and in bfloat16 a removed hit results in NaN.
        return tf.nn.sampled_softmax_loss(
            weight_VD,
            bias_V,
            tf.cast(targets_N, tf.int64)[:, None],
            at_least_float32(tf.cast(hidden_ND, weight_VD.dtype)),
            num_sampled=tf.size(words_U),
            num_classes=self.spec.vocab,
            sampled_values=(
                words_U,
                tf.gather(expected_V, targets_N)[:, None],
                tf.gather(expected_V, words_U) / tf.cast(times_U, self.expected.dtype),
            ),
            remove_accidental_hits=self.spec.options["remove_hits"],
        )

    def formulation(self) -> str:
        return f"tf.nn.sampled_softmax_loss over {self.spec.options['samples']} sampled words"


LAYER = SampledSoftmaxLoss
