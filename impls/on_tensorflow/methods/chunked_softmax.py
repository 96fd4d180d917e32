"""Full softmax over chunks of tokens in TensorFlow. See `impls/on_numpy/methods/chunked_softmax.py`."""

from __future__ import annotations

from vocabench.impls.on_tensorflow import objectives
from vocabench.impls.on_tensorflow.methods.full_softmax import FullSoftmax
from vocabench.impls.on_tensorflow.ops.tensors import Tensor


class ChunkedSoftmax(FullSoftmax):
    """Full softmax whose losses are computed in chunks of tokens by `tf.recompute_grad`.

    Weights: `weight` (V, D), `bias` (V,).
    """

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return objectives.in_blocks(super()._nll, self.spec.vocab, hidden_ND, targets_N)

    def formulation(self) -> str:
        return f"chunks of tokens, recomputed by tf.recompute_grad; {self.form}"


LAYER = ChunkedSoftmax
