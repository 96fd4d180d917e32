"""Full softmax in PyTorch: one product and the fused cross-entropy. See `impls/on_numpy/methods/full_softmax.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.ops.rows import mean_row, rows_of
from vocabench.impls.on_torch.ops.topk import exact_topk
from vocabench.impls.on_torch.parallel.ranks import Ranks, copied, own_entries
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, at_least_float32
from vocabench.impls.spec import LayerSpec


class FullSoftmax(OutputLayer):
    """log P(w | h) = h.W_w + b_w - logsumexp(h W^T + b).

    Parameters: `weight` (V, D), `bias` (V,), which is None with the option `bias=False`.
    """

    bias: nn.Parameter | None

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        dtype = TORCH_DTYPES[spec.dtype]
        self.weight = nn.Parameter(torch.empty(spec.vocab, spec.dim, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(spec.vocab, dtype=dtype)) if spec.has_bias else None

    @property
    def _bias_V(self) -> Tensor:
        """The biases (V,), or zeros for a layer without."""
        return self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        return at_least_float32(products.linear(hidden_ND, self.weight, self.bias))

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return F.cross_entropy(self._logits(hidden_ND), targets_N, reduction="none")

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        logits_NV = products.linear(hidden_ND, self.weight, self.bias)
        # The cast is part of the same pass: a separate one would take a GPU two thirds as long as this.
        return F.log_softmax(logits_NV, dim=1, dtype=torch.promote_types(logits_NV.dtype, torch.float32))

    def _target_logits(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        cast_ND = at_least_float32(hidden_ND.to(self.weight.dtype))
        logits_N = (cast_ND * rows_of(self.weight, targets_N)).sum(dim=1)
        return logits_N if self.bias is None else logits_N + rows_of(self.bias, targets_N)

    def _mean_logits(self, hidden_ND: Tensor) -> Tensor:
        cast_ND = at_least_float32(hidden_ND.to(self.weight.dtype))
        mean_N = cast_ND @ mean_row(self.weight)
        return mean_N if self.bias is None else mean_N + mean_row(self.bias)

    def _tie(self, embedding: nn.Embedding, name: str) -> None:
        self.weight = embedding.weight

    def word_vectors(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        if hidden_ND.is_cuda or hidden_ND.size(0) == 1:
            return super()._search(hidden_ND, k)
        # On a CPU, summing exponentials that overwrite the logits is faster than writing log-probabilities.
        values_NK, ids_NK, log_sum_N = FullSoftmax.best_logits(self, hidden_ND, k)
        return values_NK - log_sum_N[:, None], ids_NK, torch.ones(hidden_ND.size(0))

    # The words of one rank, of a layer whose words are split over several (`parallel/softmax.py`).
    def nll_over(self, ranks: Ranks, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the (N,) negative log-likelihoods over the words of all ranks, of which this layer has some.

        Args:
            ranks: The ranks, all of which call.
            hidden_ND: The hidden vectors, the same on all ranks. Their gradient is the sum over all ranks.
            targets_N: Words of this layer; -1 where the target is a word of another rank.
        """
        logits_NV = self._logits(copied(hidden_ND, ranks))
        return ranks.nll(logits_NV.logsumexp(dim=1), own_entries(logits_NV, targets_N))

    def log_sums(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N,) log-sum-exp of the logits, without gradients."""
        return self._logits(hidden_ND).logsumexp(dim=1)

    def best_logits(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the k highest logits and their words (N, K), and the (N,) log-sum-exp of all, without gradients."""
        logits_NV = self._logits(hidden_ND)
        values_NK, ids_NK = exact_topk(logits_NV, k)
        highest_N1 = values_NK[:, :1]
        return values_NK, ids_NK, logits_NV.sub_(highest_N1).exp_().sum(dim=1).log_().add_(highest_N1[:, 0])


LAYER = FullSoftmax
