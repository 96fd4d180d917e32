"""The lower level of a two-level layer on its own: words by cluster, and their products with few vectors or many.

Products are chosen by what has to be read: of few vectors a product takes as long as reading the words, so that it may
pay to leave the empty slots of clusters out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vocabench.impls.on_torch.layer import at_least_float32
from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.two_level import cluster_softmax
from vocabench.impls.on_torch.two_level.word_rows import WordRows

_FEW_TOGETHER = 3  # rows up to which a batched product of the clusters' words with them is faster on a CPU
_LARGE = 2**17  # numbers of a cluster's slots: of few rows the empty ones take longer to read than a call takes
_LARGE_EVEN = 2**16  # the same where all clusters are one batched product of vectors with words
_EVEN = 1.3  # slots up to the largest cluster's size, over words: above it clusters are not of nearly one size
_FEW_EVEN = 64  # rows up to which these are one batched product


@dataclass(frozen=True)
class WordsByCluster:
    """The lower level of a two-level layer.

    Attributes:
        vectors: (C, S, D) or (V, D), as `rows` has it.
        bias: (C, S) or (V,) word biases, or None.
        word_CS: The word in each slot.
        rows: Of the words.
        form: Of products of pairs with words, as in `cluster_softmax.ByCluster`.
    """

    vectors: Tensor
    bias: Tensor | None
    word_CS: Tensor
    rows: WordRows
    form: str

    @cached_property
    def even(self) -> bool:
        """Whether the words are in a slab, of clusters of nearly one size."""
        sizes = self.rows.sizes
        return self.rows.in_slab and len(sizes) * max(sizes) <= _EVEN * sum(sizes)

    @cached_property
    def added_CS(self) -> Tensor:
        """What a word's score gets on top, its bias or 0; -inf in an empty slot."""
        blank_CS = self.rows.blank_CS.to(at_least_float32(self.vectors[:0]).dtype)
        return blank_CS if self.bias is None else blank_CS + self.rows.by_slot(self.rows.flat(self.bias))

    def by_one_product(self, hidden_RD: Tensor) -> bool:
        """Whether one product with all words, the words first, is faster by far than any that go by clusters."""
        if len(hidden_RD) <= products.FEWEST or torch.is_grad_enabled():
            return False
        return products.is_onednns(self.rows.flat(self.vectors), hidden_RD)

    def joint(
        self, hidden_RD: Tensor, log_cluster_RC: Tensor, row_P: Tensor, batch: cluster_softmax.ByCluster
    ) -> Tensor:
        """(P, S) log P(c, w | h) of the words of (row, cluster) pairs, sorted by cluster; -inf in an empty slot."""
        scores_PS = cluster_softmax.scores(hidden_RD, row_P, self.vectors, self.bias, batch)
        return _joint(scores_PS, log_cluster_RC[row_P, batch.cluster_N])

    def joint_of_row(self, hidden_D: Tensor, log_cluster_M: Tensor, cluster_M: Tensor) -> Tensor:
        """(M, S) log P(c, w | h) of the words of some clusters of one row; -inf in an empty slot."""
        columns_DX = products.columns_of(hidden_D)
        scores_MSX = columns_DX.new_full((len(cluster_M), self.rows.slots, columns_DX.shape[1]), -torch.inf)
        for scores_SX, cluster in zip(scores_MSX.unbind(), cluster_M.tolist(), strict=True):
            words_SD = self.rows.of_cluster(self.vectors, cluster)
            torch.mm(words_SD, columns_DX, out=scores_SX.narrow(0, 0, len(words_SD)))
        scores_MS = at_least_float32(scores_MSX[:, :, 0])
        if self.bias is not None:
            scores_MS = scores_MS + self.rows.of_clusters(self.bias, cluster_M)
        return _joint(scores_MS, log_cluster_M)

    def joint_of_all(self, hidden_RD: Tensor, log_cluster_RC: Tensor) -> Tensor:
        """(R, C, S) log P(c, w | h) of all words; -inf in an empty slot."""
        return _joint(self.scores_of_all(hidden_RD), log_cluster_RC)

    def scores_of_all(self, hidden_RD: Tensor) -> Tensor:
        """(R, C, S) scores of all words, -inf in an empty slot; without the last slots where these hold no word."""
        rows, clusters, words_FD = len(hidden_RD), len(self.added_CS), self.rows.flat(self.vectors)
        on_cpu = hidden_RD.device.type == "cpu" and hidden_RD.dtype == torch.float32
        if self.by_one_product(hidden_RD):
            scores_CSR = self.rows.of_slots(products.linear(words_FD, hidden_RD))
            scores_RCS = scores_CSR.new_empty(rows, *self.added_CS.shape)
            return torch.add(scores_CSR.permute(2, 0, 1), self.added_CS, out=scores_RCS)
        if not self.rows.in_slab:
            return self.rows.by_slot(at_least_float32(products.linear(hidden_RD, words_FD))).add_(self.added_CS)
        numbers = self.vectors[0].numel()
        if on_cpu and rows <= _FEW_EVEN and numbers >= _LARGE_EVEN and not torch.is_grad_enabled():
            if self.even and not products.words_first():
                return self._scores_of_even(hidden_RD)
            if numbers >= _LARGE and rows <= products.FEW_VECTORS:
                return self._scores_without_empty(hidden_RD) + self.added_CS
        # In half precision the one product is the faster.
        if on_cpu and rows <= _FEW_TOGETHER and products.words_first():
            scores_CSR = torch.bmm(self.vectors, hidden_RD.repeat(clusters, 1, 1).transpose(1, 2))
            return scores_CSR.permute(2, 0, 1) + self.added_CS
        scores_RF = at_least_float32(hidden_RD @ words_FD.T)
        scores_RF += self.added_CS.flatten()
        return scores_RF.view(rows, *self.added_CS.shape)

    def _scores_of_even(self, hidden_RD: Tensor) -> Tensor:
        """(R, C, S) scores of all words, by one batched product that reads no slots beyond the largest cluster's."""
        reached_CSD = self.vectors[:, : max(self.rows.sizes)]
        hidden_CRD = hidden_RD.expand(len(reached_CSD), -1, -1)
        if len(hidden_RD) <= products.FEW_VECTORS:
            scores_CRS = torch.bmm(hidden_CRD, reached_CSD.transpose(1, 2))
        else:
            scores_CRS = torch.bmm(reached_CSD, hidden_CRD.transpose(1, 2)).transpose(1, 2)
        scores_RCS = hidden_RD.new_empty(len(hidden_RD), *reached_CSD.shape[:2])
        return torch.add(scores_CRS.transpose(0, 1), self.added_CS[:, : reached_CSD.shape[1]], out=scores_RCS)

    def _scores_without_empty(self, hidden_RD: Tensor) -> Tensor:
        """(R, C, S) scores of all words, by a product for each cluster, which reads no empty slot; 0 there."""
        (clusters, width), rows = self.word_CS.shape, len(hidden_RD)
        pieces = self.rows.by_cluster(self.vectors)
        if products.words_first():
            columns_DX = hidden_RD.T if rows > 1 else products.columns_of(hidden_RD[0])
            scores_CSX = hidden_RD.new_zeros(clusters, width, columns_DX.shape[1])
            for words_SD, scores_SX in zip(pieces, self.rows.by_cluster(scores_CSX), strict=True):
                torch.mm(words_SD, columns_DX, out=scores_SX)
            return scores_CSX.permute(2, 0, 1)[:rows].contiguous()
        scores_RCS = hidden_RD.new_zeros(rows, clusters, width)
        for words_SD, scores_SR in zip(pieces, self.rows.by_cluster(scores_RCS.permute(1, 2, 0)), strict=True):
            torch.mm(hidden_RD, words_SD.T, out=scores_SR.T)
        return scores_RCS


def _joint(scores: Tensor, log_cluster: Tensor) -> Tensor:
    """log P(c, w | h) from the scores of a cluster's words, along the last axis, and log P(c | h)."""
    return torch.log_softmax(scores, dim=-1).add_(log_cluster[..., None])
