"""Full softmax over chunks of tokens in JAX. See `impls/on_numpy/methods/chunked_softmax.py`."""

from __future__ import annotations

from vocabench.impls.on_jax import objectives
from vocabench.impls.on_jax.methods.full_softmax import FullSoftmax
from vocabench.impls.on_jax.ops.arrays import Array, Tree


class ChunkedSoftmax(FullSoftmax):
    """Full softmax whose losses are computed in chunks of tokens by `jax.checkpoint`.

    Parameters: `weight` (V, D) and `bias` (V,), as in full softmax.
    """

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        def of_chunk(hidden_BD: Array, targets_B: Array) -> Array:
            return FullSoftmax._nll(self, params, structure, hidden_BD, targets_B)

        return objectives.in_blocks(of_chunk, self.spec.vocab, hidden_ND, targets_N)

    def formulation(self) -> str:
        return "chunks of tokens, recomputed by jax.checkpoint"


LAYER = ChunkedSoftmax
