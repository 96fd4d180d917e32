"""Differentiated softmax in TensorFlow: one product and one log-sum-exp for each band.

See `impls/on_numpy/methods/d_softmax.py` for the definition.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from vocabench.impls.on_tensorflow.hooks import OWN_KERNELS, XLA
from vocabench.impls.on_tensorflow.layer import OutputLayer
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, at_least_float32, product
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import bands


class DifferentiatedSoftmax(OutputLayer):
    """log P(w | h) = h_b.W_w + bias_w - logsumexp over the words of all bands, with w in band b and h_b its slice of h
    (Chen, Grangier, Auli 2016).

    Weights: `band{b}_weight` (words of band b, E_b); `bias` (V,), band after band, unless it is left out.
    """

    FORMS = (XLA, OWN_KERNELS)

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        super().__init__(spec, **keyword)
        self.bands = int(spec.structure["band"].max()) + 1
        self.band, self.slot = (tf.constant(spec.structure[name], tf.int32) for name in ("band", "slot"))
        # The words band after band, and the position of each word in this order.
        self.word = tf.constant(bands.words_by_band(spec.structure["band"]), tf.int32)
        self.place = tf.constant(bands.places(spec.structure["band"]), tf.int32)

    def _by_band(self, kind: str) -> list[Tensor]:
        return [self.value_of(f"band{band}_{kind}") for band in range(self.bands)]

    def _inputs(self, hidden_ND: Tensor) -> list[Tensor]:
        """Return the (N, E) vectors from which the words of each band are scored."""
        return tf.split(hidden_ND, [weight.shape[1] for weight in self._by_band("weight")], axis=1)

    def _band_logits(self, hidden_ND: Tensor) -> list[Tensor]:
        """Return the (N, words) logits of each band."""
        weights = self._by_band("weight")
        biases = tf.split(self.bias_of(), [weight.shape[0] for weight in weights])
        bands = zip(self._inputs(hidden_ND), weights, biases, strict=True)
        return [at_least_float32(product(inputs_NE, weight) + bias) for inputs_NE, weight, bias in bands]

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        # The bands' logits are never copied into one array.
        logits = self._band_logits(hidden_ND)
        total_NB = tf.stack([tf.reduce_logsumexp(part, axis=1) for part in logits], axis=1)
        slot_N = tf.gather(self.slot, targets_N)
        score_NB = tf.stack([pick(part, tf.minimum(slot_N, part.shape[1] - 1)) for part in logits], axis=1)
        return tf.reduce_logsumexp(total_NB, axis=1) - pick(score_NB, tf.gather(self.band, targets_N))

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        return tf.gather(tf.concat(self._band_logits(hidden_ND), axis=1), self.place, axis=1)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        logits_NV = tf.concat(self._band_logits(hidden_ND), axis=1)
        return tf.gather(tf.nn.log_softmax(logits_NV), self.place, axis=1)

    def to_canonical(self, tensors: Tensors) -> Tensors:
        return tensors | {"bias": tf.gather(tensors["bias"], self.place)} if "bias" in tensors else dict(tensors)

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return tensors | {"bias": tf.gather(tensors["bias"], self.word)} if "bias" in tensors else dict(tensors)


def pick(scores_NV: Tensor, index_N: Tensor) -> Tensor:
    """Return (N,) entries, one of each row."""
    return tf.gather(scores_NV, index_N, batch_dims=1)


LAYER = DifferentiatedSoftmax
