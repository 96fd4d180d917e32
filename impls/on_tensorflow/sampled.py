"""The base class of losses over sampled words, in TensorFlow. See `impls/on_numpy/sampled.py` for the definition."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import tensorflow as tf

from vocabench.impls.on_numpy import sampled
from vocabench.impls.on_tensorflow.hooks import Reach
from vocabench.impls.on_tensorflow.methods.full_softmax import FullSoftmax
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, at_least_float32, product
from vocabench.impls.spec import LayerSpec


def _rows(parameter: Tensor, ids_R: Tensor) -> Tensor:
    """Return rows of a parameter, with a dense gradient that sums duplicate rows before it is rounded."""

    @tf.custom_gradient
    def rows(parameter: Tensor) -> tuple[Tensor, object]:
        def gradient(drows: Tensor) -> Tensor:
            return tf.cast(tf.math.unsorted_segment_sum(drows, ids_R, tf.shape(parameter)[0]), parameter.dtype)

        return at_least_float32(tf.gather(parameter, ids_R)), gradient

    return rows(tf.convert_to_tensor(parameter))


class SampledLayer(FullSoftmax):
    """The parameters of full softmax, trained on the target and sampled words.

    Call `layer(hidden_ND, targets_N, sampled_ids=ids_S)`, with `correction=correction_V` if the batch has its own, or
    with `sampled_ids=ids_NS` where each token has sampled words of its own.

    Weights: `weight` (V, D), `bias` (V,), and `log_normaliser` (1,) if it is learned.
    """

    @property
    def FEW_ROWS(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("weight", "bias") if self.spec.has_bias else ("weight",)

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        super().__init__(spec, **keyword)
        dtype = at_least_float32(tf.zeros(0, spec.storage)).dtype
        self.correction = tf.constant(spec.structure["correction"], dtype)

    @abstractmethod
    def contrast(self, target_N: Tensor, sampled_NS: Tensor) -> Tensor:
        """Return (N,) losses from the corrected scores of targets and sampled words; -inf where a word is left out."""

    def _training_losses(  # type: ignore[override]
        self, hidden_ND: Tensor, targets_N: Tensor, *, sampled_ids: Tensor, correction: Tensor | None = None
    ) -> Tensor:
        tables = {name: self.value_of(name) for name in self.FEW_ROWS}
        correction_V = self.correction if correction is None else correction
        return self._contrast_losses(hidden_ND, targets_N, sampled_ids, correction_V, **tables)

    def reach(  # type: ignore[override]
        self, targets_N: Tensor, *, sampled_ids: Tensor, correction: Tensor | None = None
    ) -> Reach:
        rows_U, place_R = tf.unique(tf.concat([targets_N, tf.reshape(sampled_ids, [-1])], axis=0))
        place_N, place_X = tf.split(place_R, [tf.size(targets_N), tf.size(sampled_ids)])
        places = tf.reshape(place_X, tf.shape(sampled_ids))
        correction_U = tf.gather(self.correction if correction is None else correction, rows_U)

        def loss(hidden_ND: Tensor, tables: Tensors) -> Tensor:
            return tf.reduce_mean(self._contrast_losses(hidden_ND, place_N, places, correction_U, **tables))

        return Reach({name: rows_U for name in self.FEW_ROWS}, loss)

    def _contrast_losses(
        self,
        hidden_ND: Tensor,
        targets_N: Tensor,
        sampled_ids: Tensor,
        correction_V: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
    ) -> Tensor:
        weight_VD, tokens = weight, tf.shape(targets_N)[0]
        ids_R = tf.concat([targets_N, tf.reshape(sampled_ids, [-1])], axis=0)
        rows_RD = _rows(weight_VD, ids_R)
        offset_R = -tf.cast(tf.gather(correction_V, ids_R), self.correction.dtype)
        if bias is not None:
            offset_R = _rows(bias, ids_R) + offset_R
        if (log_normaliser := self.value_of("log_normaliser")) is not None:
            offset_R -= at_least_float32(tf.convert_to_tensor(log_normaliser))
        cast_ND = tf.cast(hidden_ND, weight_VD.dtype)
        target_N = tf.reduce_sum(at_least_float32(cast_ND) * rows_RD[:tokens], axis=1) + offset_R[:tokens]
        if len(sampled_ids.shape) == 1:
            product_NS = at_least_float32(product(cast_ND, tf.cast(rows_RD[tokens:], weight_VD.dtype)))
        else:
            rows_NSD = tf.reshape(rows_RD[tokens:], [tokens, tf.shape(sampled_ids)[1], self.spec.dim])
            product_NS = tf.linalg.matvec(rows_NSD, at_least_float32(cast_ND))
        sampled_NS = product_NS + tf.reshape(offset_R[tokens:], tf.shape(sampled_ids))
        if self.spec.options["remove_hits"]:
            hit_NS = tf.equal(targets_N[:, None], sampled_ids)
            sampled_NS = tf.where(hit_NS, tf.cast(-float("inf"), sampled_NS.dtype), sampled_NS)
        return self.contrast(target_N, sampled_NS)

    def formulation(self) -> str:
        return f"rows of the targets and of {sampled.described(self.spec)}; {self.form}"
