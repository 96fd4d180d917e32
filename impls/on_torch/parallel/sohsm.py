"""Self-organized hierarchical softmax with fixed clusters, whole clusters to a rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocabench.impls.errors import BadInput
from vocabench.impls.forms import Form
from vocabench.impls.on_numpy.methods import sohsm
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.methods.sohsm import SelfOrganizedHierarchicalSoftmax
from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.parallel.layer import ParallelLayer
from vocabench.impls.on_torch.parallel.ranks import Ranks, copied, own_entries
from vocabench.impls.on_torch.sampling import drawn_part
from vocabench.impls.on_torch.tensors import at_least_float32
from vocabench.impls.on_torch.two_level import cluster_softmax
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import parts


class _OwnClusters(SelfOrganizedHierarchicalSoftmax):
    """The clusters of one rank. The projections, which all ranks hold, sum their gradients over the ranks."""

    def __init__(self, spec: LayerSpec, ranks: Ranks) -> None:
        super().__init__(spec)
        self.ranks = ranks

    def _blank(self) -> _OwnClusters:
        return _OwnClusters(self.spec, self.ranks)

    def _projection(self, name: str) -> Tensor | None:
        weight_DD = super()._projection(name)
        return None if weight_DD is None else copied(weight_DD, self.ranks)

    def cluster_scores(self, cluster_hidden_ND: Tensor) -> Tensor:
        """Return the (N, C_r) logits of this rank's clusters from projected hidden vectors."""
        bias_C = getattr(self, "cluster_bias", None)
        return at_least_float32(products.linear(cluster_hidden_ND, self.cluster_weight, bias_C))


class ParallelClusters(ParallelLayer):
    """SOHSM with fixed clusters. Ranges of clusters with about as many words each go to the ranks.

    Parameters: those of SOHSM below `own.`, with the clusters and words of this rank; every rank has the projections.
    """

    own: _OwnClusters

    def __init__(self, spec: LayerSpec, ranks: Ranks) -> None:
        if spec.options["interval"]:
            raise BadInput(
                f"option interval={spec.options['interval']} with a group: allowed: 0, clusters that stay in place"
            )
        self._ends = parts.cluster_ranges(spec.structure["cluster"], _clusters(spec), ranks.size)
        super().__init__(spec, ranks)

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return SelfOrganizedHierarchicalSoftmax.forms(spec)

    def _words_of(self, rank: int) -> NDArray[np.int64]:
        cluster_V = self.spec.structure["cluster"]
        return np.flatnonzero((self._ends[rank] <= cluster_V) & (cluster_V < self._ends[rank + 1]))

    def _layer_of(self, words_R: NDArray[np.int64]) -> _OwnClusters:
        first, end = self._ends[self.ranks.rank : self.ranks.rank + 2].tolist()
        cluster_R, clusters = self.spec.structure["cluster"][words_R] - first, end - first
        largest = int(np.bincount(cluster_R).max())
        gamma = (largest + 0.5) * clusters / len(words_R)  # as many slots as the largest of these clusters needs
        options = {**sohsm.held(self.spec.options, self.spec.structure), "cluster": None}
        own = replace(
            self.spec,
            counts=self.spec.counts[words_R],
            options={**options, "clusters": clusters, "gamma": gamma},
            structure={"cluster": cluster_R, "cluster_count": np.array(clusters)},
        )
        return _OwnClusters(own, self.ranks)

    # State and parameters.
    def _of_all(self, name: str, own: Tensor) -> Tensor:
        if name.endswith("_projection"):
            return own
        if name.startswith("cluster_"):
            return self.ranks.concatenated(own, np.diff(self._ends).tolist())
        return super()._of_all(name, own)

    def _of_own(self, name: str, whole: Tensor) -> Tensor:
        if name.endswith("_projection"):
            return whole.to(self.words.device)
        if name.startswith("cluster_"):
            first, end = self._ends[self.ranks.rank : self.ranks.rank + 2].tolist()
            return whole[first:end].to(self.words.device)
        return super()._of_own(name, whole)

    def _check_structure(self, whole: OutputLayer) -> None:
        if not np.array_equal(whole.present_spec().structure["cluster"], self.spec.structure["cluster"]):
            raise BadInput(
                "state of the whole layer has other clusters: allowed: those of the layer, given as option cluster"
            )

    # Losses.
    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the (N,) losses. A rank scores all of its clusters, and the words of its targets' clusters."""
        own, number_N = self.own, self.number[targets_N]
        shared_ND = copied(hidden_ND, self.ranks)
        cluster_hidden_ND, word_hidden_ND = own._projected(shared_ND, "cluster_projection", "word_projection")
        logits_NC = own.cluster_scores(cluster_hidden_ND)
        cluster_N = own.cluster[number_N.clamp(min=0)].where(number_N >= 0, -1)
        rows_R = (number_N >= 0).nonzero()[:, 0]
        places = own._places(number_N[rows_R])
        if len(rows_R):
            words = own.word_weight, own._word_bias
            word_nll_R = cluster_softmax.in_cluster_nll(word_hidden_ND[rows_R], *words, *places, own._rows, own.form)
        else:  # gradients of zeros, as every rank takes part in their sums
            word_nll_R = at_least_float32(word_hidden_ND[rows_R].sum(dim=1) + own.word_weight[:0].sum())
            if own._word_bias is not None:
                word_nll_R = word_nll_R + at_least_float32(own._word_bias[:0].sum())
        word_nll_N = torch.zeros_like(logits_NC[:, 0]).index_copy(0, rows_R, word_nll_R)
        # Both levels in the message that carries the targets' logits.
        return self.ranks.nll(logits_NC.logsumexp(dim=1), own_entries(logits_NC, cluster_N) - word_nll_N)

    # Decoding.
    def _cluster_log_sums(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N,) log-sum-exp of the logits of this rank's clusters."""
        (cluster_hidden_ND,) = self.own._projected(hidden_ND, "cluster_projection")
        return self.own.cluster_scores(cluster_hidden_ND).logsumexp(dim=1)

    def _own_log_probs(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        log_sum_N = self._cluster_log_sums(hidden_ND)
        joined_N, _ = self.ranks.joined_with_gradients(log_sum_N, torch.zeros_like(log_sum_N))
        return self.own._log_probs(hidden_ND) + (log_sum_N - copied(joined_N, self.ranks))[:, None]

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        values_NJ, number_NJ, share_N = self.own._search(hidden_ND, min(k, len(self.words)))
        log_sum_N = self._cluster_log_sums(hidden_ND)
        joined_N, _ = self.ranks.joined(log_sum_N, torch.zeros_like(log_sum_N))
        share_N = self.ranks.add_up(share_N * (self._ends[self.ranks.rank + 1] - self._ends[self.ranks.rank]))
        merged = self._merged(values_NJ + (log_sum_N - joined_N)[:, None], number_NJ, k)
        return *merged, share_N / int(self._ends[-1])

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words: the first uniform draws a rank and one of its clusters, the second a word."""
        stacked_NR = self.ranks.stacked(self._cluster_log_sums(hidden_ND)).T
        part_N, left_N = drawn_part(stacked_NR, uniforms_NU[:, 0])
        word_N = torch.zeros_like(part_N)
        rows_R = (part_N == self.ranks.rank).nonzero()[:, 0]
        if len(rows_R):
            uniforms_RU = torch.stack([left_N[rows_R], uniforms_NU[rows_R, 1]], dim=1)
            word_N[rows_R] = self.words[self.own._sample(hidden_ND[rows_R], uniforms_RU)]
        return self.ranks.add_up(word_N)


def _clusters(spec: LayerSpec) -> int:
    return int(spec.structure["cluster_count"])


LAYER = ParallelClusters
