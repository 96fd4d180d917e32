"""Keras' cross-entropy of logits in TensorFlow. See `impls/on_numpy/methods/keras_cross_entropy.py`."""

from __future__ import annotations

import keras

from vocabench.impls import peer_packages
from vocabench.impls.on_tensorflow.methods.full_softmax import FullSoftmax
from vocabench.impls.on_tensorflow.ops.tensors import Tensor


class KerasCrossEntropy(FullSoftmax):
    """`keras.losses.sparse_categorical_crossentropy` of the logits.

    Weights: `weight` (V, D), `bias` (V,).
    """

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return keras.losses.sparse_categorical_crossentropy(targets_N, self._logits(hidden_ND), from_logits=True)

    def formulation(self) -> str:
        return f"{peer_packages.versioned('keras')}; {self.form}"


LAYER = KerasCrossEntropy
