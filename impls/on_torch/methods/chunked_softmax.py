"""Full softmax over chunks of tokens in PyTorch. See `impls/on_numpy/methods/chunked_softmax.py`."""

from __future__ import annotations

from torch import Tensor

from vocabench.impls.on_torch import objectives
from vocabench.impls.on_torch.methods.full_softmax import FullSoftmax


class ChunkedSoftmax(FullSoftmax):
    """Full softmax whose losses are computed in chunks of tokens by `torch.utils.checkpoint`.

    Parameters: `weight` (V, D), `bias` (V,), as in full softmax.
    """

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return objectives.in_blocks(super()._nll, self.spec.vocab, hidden_ND, targets_N)

    def formulation(self) -> str:
        return "chunks of tokens, recomputed by torch.utils.checkpoint"


LAYER = ChunkedSoftmax
