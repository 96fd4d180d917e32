"""CNN softmax in TensorFlow. See `impls/on_numpy/methods/cnn_softmax.py` for the definition."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from vocabench.impls.on_numpy.methods.cnn_softmax import WIDTHS, before
from vocabench.impls.on_tensorflow.hooks import OWN_KERNELS, XLA
from vocabench.impls.on_tensorflow.layer import OutputLayer
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, at_least_float32, cross_entropy, product
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures.windows import WIDEST, Blocks, blocks, windows


class CnnSoftmax(OutputLayer):
    """log P(w | h) = log softmax(h (f P^T / sqrt 4F + r M^T / sqrt R)^T + b)[w], with f the pooled filters over the
    characters of each word.

    Weights: `char_embedding` (A, E), `conv{k}_weight` (F, k, E) and `conv{k}_bias` (F,) for k = 1..4,
    `char_projection` (D, 4 F), `bias` (V,) unless it is left out, and if there is a correction `correction_weight`
    (V, R) and `correction_projection` (D, R). Constants: `windows` (U, 4) and `blocks`.

    Each call computes the scores (U, X) of the U different windows of the words. The features (V, X) of a word are the
    highest score of each filter. If X + R is below D, hidden vectors are projected to that width; otherwise the word
    vectors (V, D) are computed. Memory holds these, the gradient of the scores and (V, X) ids.
    """

    FORMS = (XLA, OWN_KERNELS)

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        super().__init__(spec, **keyword)
        windows_UK, ids_VT = windows(spec.structure["characters"])
        self.windows = tf.constant(windows_UK)
        self.blocks = blocks(ids_VT)
        self._corrects = "correction_weight" in self.inner_shapes()

    def _features(self) -> Tensor:
        """Return the (V, X) features of the words."""
        biases = [at_least_float32(self.value_of(f"conv{k}_bias")) for k in WIDTHS]
        # A bias is the same for all windows, so it is added after the maximum.
        return tf.nn.relu(_highest(self._scores(), self.blocks) + tf.concat(biases, axis=0))

    def _scores(self) -> Tensor:
        """Return the (U, X) scores of each window and filter, in at least float32, in which gradients are summed.

        All widths are one product: narrower filters are padded.
        """
        around = {k: [[0, 0], [before(k), WIDEST - k - before(k)], [0, 0]] for k in WIDTHS}
        weight_XKE = tf.concat([tf.pad(self._scaled(f"conv{k}_weight"), around[k]) for k in WIDTHS], axis=0)
        weight_XY = tf.cast(tf.reshape(weight_XKE, [weight_XKE.shape[0], -1]), self.compute_dtype)
        embedding_AE = tf.pad(at_least_float32(self.value_of("char_embedding")), [[1, 0], [0, 0]])  # row 0 is padding
        windows_UY = tf.reshape(tf.gather(embedding_AE, self.windows), [len(self.windows), -1])
        return at_least_float32(product(windows_UY, weight_XY))

    def _scaled(self, name: str) -> Tensor:
        """Return a weight divided by the square root of the number of terms of its products, in at least float32."""
        weight = at_least_float32(self.value_of(name))
        return weight / math.prod(weight.shape[1:]) ** 0.5

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        features_VY, projection_DY = tf.cast(self._features(), self.compute_dtype), self._scaled("char_projection")
        if self._corrects:
            features_VY = tf.concat([features_VY, self.value_of("correction_weight")], axis=1)
            projection_DY = tf.concat([projection_DY, self._scaled("correction_projection")], axis=1)
        projection_DY = tf.cast(projection_DY, self.compute_dtype)
        # The narrower of features and hidden vectors is multiplied with the vocabulary.
        if features_VY.shape[1] < self.spec.dim:  # type: ignore[operator]
            logits_NV = product(product(hidden_ND, tf.transpose(projection_DY)), features_VY)
        else:
            logits_NV = product(hidden_ND, product(features_VY, projection_DY))
        return at_least_float32(logits_NV + self.bias_of())

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return cross_entropy(self._logits(hidden_ND), targets_N)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        return tf.nn.log_softmax(self._logits(hidden_ND))


def _highest(scores_UX: Tensor, blocks: Blocks) -> Tensor:
    """Return the (V, X) highest scores of each word. The gradient goes to the first of equal scores."""
    filters = scores_UX.shape[1]
    fixed_UX = tf.stop_gradient(scores_UX)

    def winners(block: tuple[Tensor, Tensor]) -> Tensor:
        ids_TW, places = block

        def compare(place: Tensor, highest_WX: Tensor, winner_WX: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            score_WX = tf.gather(fixed_UX, ids_TW[place])
            winner_WX = tf.where(score_WX > highest_WX, ids_TW[place, :, None], winner_WX)
            return place + 1, tf.maximum(highest_WX, score_WX), winner_WX

        first_WX = tf.broadcast_to(ids_TW[0, :, None], [ids_TW.shape[1], filters])
        start = (tf.constant(1), tf.gather(fixed_UX, ids_TW[0]), first_WX)
        return tf.while_loop(lambda place, *_: place < places, compare, start, parallel_iterations=1)[2]

    inputs = (blocks.ids_BTW, blocks.places_B)
    winner_BWX = tf.map_fn(winners, inputs, parallel_iterations=1, fn_output_signature=tf.int32)
    winner_VX = tf.gather(tf.reshape(winner_BWX, [-1, filters]), blocks.rank_V)
    # With one index instead of two, XLA reads and sums gradients faster.
    flat_VX = tf.cast(winner_VX, tf.int64) * filters + tf.range(filters, dtype=tf.int64)
    return tf.gather(tf.reshape(scores_UX, [-1]), flat_VX)


LAYER = CnnSoftmax
