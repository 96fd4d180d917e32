"""Full softmax, in any of its ways to keep memory, with the words split over ranks (Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vocabench.impls.calls import Objective, Sampling
from vocabench.impls.forms import Form
from vocabench.impls.on_torch import objectives
from vocabench.impls.on_torch.methods.full_softmax import FullSoftmax
from vocabench.impls.on_torch.native import blank, layer_class
from vocabench.impls.on_torch.parallel.layer import ParallelLayer
from vocabench.impls.on_torch.parallel.ranks import copied, own_entries, summed
from vocabench.impls.on_torch.sampling import COLDEST, drawn_part
from vocabench.impls.on_torch.tensors import draw
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import blocks, parts


class ParallelSoftmax(ParallelLayer):
    """Full softmax whose words are split into ranges of ids, one for each rank.

    Parameters: `own.weight` (V_r, D), `own.bias` (V_r,).
    """

    own: FullSoftmax

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return layer_class(spec.method).forms(spec)

    def _words_of(self, rank: int) -> NDArray[np.int64]:
        return parts.even_range(self.spec.vocab, rank, self.ranks.size)

    def _layer_of(self, words_R: NDArray[np.int64]) -> FullSoftmax:
        layer = blank(replace(self.spec, counts=self.spec.counts[words_R]))
        assert isinstance(layer, FullSoftmax)
        return layer

    # Losses.
    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return self.own.nll_over(self.ranks, hidden_ND, self.number[targets_N])

    def _target_logits(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        number_N = self.number[targets_N]
        own_N = self.own._target_logits(copied(hidden_ND, self.ranks), number_N.clamp(min=0))
        return summed(own_N.where(number_N >= 0, 0.0), self.ranks)

    def _mean_logits(self, hidden_ND: Tensor) -> Tensor:
        share = len(self.words) / self.spec.vocab
        return summed(self.own._mean_logits(copied(hidden_ND, self.ranks)) * share, self.ranks)

    def _objective_losses(self, hidden_ND: Tensor, targets_N: Tensor, objective: Objective, **extra: Tensor) -> Tensor:
        if objective.softcap is None:
            return super()._objective_losses(hidden_ND, targets_N, objective, **extra)
        softcap = objective.softcap

        def of_block(hidden_BD: Tensor, number_B: Tensor) -> Tensor:
            logits_BV = objectives.capped(self.own._logits(hidden_BD), softcap)
            sums = self.ranks.joined_with_gradients(logits_BV.logsumexp(dim=1), own_entries(logits_BV, number_B))

            def mean_logits() -> Tensor:
                return summed(logits_BV.sum(dim=1), self.ranks) / self.spec.vocab

            return objectives.losses_of_sums(*sums, mean_logits, objective)

        shared_ND = copied(hidden_ND, self.ranks)
        return objectives.in_blocks(of_block, max(self._sizes), shared_ND, self.number[targets_N])

    # Decoding.
    def _own_logits(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        logits_NV = self.own._logits(hidden_ND)
        return logits_NV if softcap is None else objectives.capped(logits_NV, softcap)

    def _own_log_probs(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        logits_NV = self._own_logits(hidden_ND, softcap)
        log_sum_N = logits_NV.logsumexp(dim=1)
        joined_N, _ = self.ranks.joined_with_gradients(log_sum_N, torch.zeros_like(log_sum_N))
        return logits_NV - copied(joined_N, self.ranks)[:, None]

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        values_NJ, number_NJ, log_sum_N = self.own.best_logits(hidden_ND, min(k, len(self.words)))
        joined_N, _ = self.ranks.joined(log_sum_N, torch.zeros_like(log_sum_N))
        return *self._merged(values_NJ - joined_N[:, None], number_NJ, k), torch.ones_like(log_sum_N)

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        return self._search(hidden_ND, k)[:2]

    def topk(self, hidden: Tensor, k: int, *, softcap: float | None = None) -> tuple[Tensor, Tensor]:
        if softcap is None or not hidden.numel():
            return super().topk(hidden, k, softcap=softcap)
        # The cap keeps the order of the words, and needs the log-sum-exp of all capped logits.
        ids = super().topk(hidden, k)[1]
        log_probs = [self.target_log_probs(hidden, ids[..., place], softcap=softcap) for place in range(k)]
        return torch.stack(log_probs, dim=-1), ids

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words: draw a rank by its share of the sum, which then draws one of its words."""
        part_N, left_N = self._drawn_rank(self.own.log_sums(hidden_ND), uniforms_NU[:, 0])
        word_N = torch.zeros_like(part_N)
        rows_R = (part_N == self.ranks.rank).nonzero()[:, 0]
        if len(rows_R):
            word_N[rows_R] = self.words[self.own._sample(hidden_ND[rows_R], left_N[rows_R, None])]
        return self.ranks.add_up(word_N)

    def _drawn_rank(self, log_sum_N: Tensor, uniforms_N: Tensor) -> tuple[Tensor, Tensor]:
        """Draw a rank for each token, and the uniform number that is left to draw one of its words."""
        return drawn_part(self.ranks.stacked(log_sum_N).T, uniforms_N)

    def _sample_with(self, hidden_ND: Tensor, uniforms_N: Tensor, options: Sampling, softcap: float | None) -> Tensor:
        if options.top_k is not None or options.top_p is not None:
            return super()._sample_with(hidden_ND, uniforms_N, options, softcap)
        return objectives.in_blocks(
            lambda hidden_BD, uniforms_B: self._sample_tempered(hidden_BD, uniforms_B, options.temperature, softcap),
            max(self._sizes),
            hidden_ND,
            uniforms_N,
        )

    def _sample_tempered(
        self, hidden_ND: Tensor, uniforms_N: Tensor, temperature: float, softcap: float | None
    ) -> Tensor:
        logits_NV = self._own_logits(hidden_ND, softcap)
        highest_N = self.ranks.highest(logits_NV.amax(dim=1))
        scores_NV = (logits_NV - highest_N[:, None]) / max(temperature, COLDEST)
        part_N, left_N = self._drawn_rank(scores_NV.logsumexp(dim=1), uniforms_N)
        word_N = self.words[draw(scores_NV.softmax(dim=1), left_N)]
        return self.ranks.add_up(word_N.where(part_N == self.ranks.rank, 0))

    def word_vectors(self, ids: Tensor) -> Tensor:
        number = self.number[ids]
        vectors = F.embedding(number.clamp(min=0), self.own.weight)
        return summed(vectors.where(number[..., None] >= 0, 0.0), self.ranks)

    def formulation(self) -> str:
        label = f"{blocks.across_devices(self.form)}, " if self.form else ""
        return f"{label}words over {self.ranks.size} ranks"


LAYER = ParallelSoftmax
