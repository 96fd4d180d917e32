"""The lower level of a two-level layer: where its words are stored, and the products that score all of them.

Words are stored by cluster, one cluster after another. A (C, S, ...) slab, with S slots for each cluster, is what
batched products and kernels take. A loop over clusters also takes words end to end: learned clusters differ in size, so
a third of a slab's slots hold no word, yet cost memory, gradients and optimizer state.

The product depends on what has to be read. A product of few vectors takes as long as reading the words, so that it can
pay to skip the empty slots of clusters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor

from vocabench.impls.forms import Form
from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.tensors import at_least_float32
from vocabench.impls.on_torch.tracing import cached, is_tracing, outside_inference_mode

# Elements of a cluster's slots from which on reading the empty ones takes longer than a call for each cluster, for few
# rows; and from which on even clusters are scored by one batched product.
_LARGE, _LARGE_EVEN = 2**17, 2**16
_EVEN = 1.3  # clusters are of nearly one size if their number times the largest size is up to so many times the words
_FEW_EVEN = 64  # rows up to which even clusters are scored by one batched product
_FEW_BATCHED = 3  # rows up to which a batched product of words with vectors is faster on a CPU
# Scores of all rows up to which one product computes them all. Above, a product scores several clusters where these are
# even, and one cluster otherwise; the latter bound depends on which factor comes first in products of few vectors.
_FEW_OF_EVEN, _FEW_SCORES = 2**17, {True: 2**18, False: 2**21}
_MANY_ROWS = 32  # from which on the scores of the one product are normalized cluster by cluster
_TOGETHER = 2**18  # scores of a product for several clusters: they stay in cache until they are normalized


@dataclass(frozen=True)
class WordRows:
    """The rows (F, ...) in which words are stored by cluster.

    Attributes:
        start_C: First row of each cluster.
        size_C: Number of words of each cluster, which are in its first rows.
        slots: Number of slots S: at least the size of the largest cluster.
        in_slab: Whether every cluster has S rows and arrays by row are (C, S, ...). Otherwise there are V rows.
    """

    start_C: Tensor
    size_C: Tensor
    slots: int
    in_slab: bool

    @classmethod
    @outside_inference_mode
    def of(cls, size_C: Tensor, slots: int, *, in_slab: bool) -> WordRows:
        start_C = torch.arange(len(size_C), device=size_C.device) * slots if in_slab else size_C.cumsum(0) - size_C
        return cls(start_C, size_C, slots, in_slab)

    @cached
    def starts(self) -> list[int]:
        """`start_C` on the host."""
        return self.start_C.tolist()

    @cached
    def sizes(self) -> list[int]:
        """`size_C` on the host."""
        return self.size_C.tolist()

    @cached
    @outside_inference_mode
    def empty_CS(self) -> Tensor:
        """True for slots without a word."""
        return empty_slots(self.size_C, self.slots)

    @cached
    @outside_inference_mode
    def row_F(self) -> Tensor:
        """Row of each slot (C S,); any row for an empty slot."""
        row_CS = self.start_C[:, None] + torch.arange(self.slots, device=self.start_C.device)
        return row_CS.clamp_(max=self.size_C.sum() - 1).flatten()

    @cached
    @outside_inference_mode
    def blank_CS(self) -> Tensor:
        """0 for slots with a word, else -inf, in float32."""
        return torch.zeros_like(self.empty_CS, dtype=torch.float32).masked_fill_(self.empty_CS, -torch.inf)

    def flat(self, by_row: Tensor) -> Tensor:
        """Return an array by row as (F, ...)."""
        return by_row.flatten(0, 1) if self.in_slab else by_row

    def of_cluster(self, by_row: Tensor, cluster: int) -> Tensor:
        """Return the rows (size, ...) of one cluster's words."""
        return self.flat(by_row).narrow(0, self.starts[cluster], self.sizes[cluster])

    def by_cluster(self, by_row: Tensor) -> Sequence[Tensor]:
        """Return the rows (size, ...) of each cluster's words."""
        return self.flat(by_row).split(self._lengths)[:: 2 if self.in_slab else 1]

    @cached
    def _lengths(self) -> list[int]:
        """Rows of each cluster's words, and in a slab of its empty slots after them."""
        return [rows for size in self.sizes for rows in (size, self.slots - size)] if self.in_slab else self.sizes

    def by_slot(self, values_F: Tensor) -> Tensor:
        """Return (..., F) values as (..., C, S), with arbitrary values in empty slots."""
        values_CS = values_F if self.in_slab else values_F.index_select(-1, self.row_F)
        return values_CS.unflatten(-1, (len(self.size_C), self.slots))

    def of_clusters(self, values: Tensor, cluster_M: Tensor) -> Tensor:
        """Return the values by row, (C, S) or (V,), of some clusters as (M, S), arbitrary in empty slots."""
        return values[cluster_M] if self.in_slab else values[self.row_F.view(-1, self.slots)[cluster_M]]

    def from_slots(self, values_CS: Tensor) -> Tensor:
        """Return values by slot as values by row: (C, S) or (V,)."""
        return values_CS if self.in_slab else values_CS[~self.empty_CS]


def empty_slots(size_M: Tensor, slots: int) -> Tensor:
    """Return (M, S), True for the slots without a word in clusters of these sizes."""
    return torch.arange(slots, device=size_M.device) >= size_M[:, None]


class Product(Enum):
    """The ways to multiply some vectors with all words."""

    WORDS_FIRST = auto()  # one product, with the words as the first factor
    VECTORS_FIRST = auto()  # one product, with the vectors as the first factor
    EVEN_CLUSTERS = auto()  # one batched product, without the slots beyond the largest cluster
    BATCHED = auto()  # one batched product, with the words as the first factors
    EACH_CLUSTER = auto()  # one product for each cluster, without its empty slots


@dataclass(frozen=True)
class InCluster:
    """log P(w | c, h) of all words for some rows.

    Attributes:
        values_F: The log-probabilities. The one of row r for the word in slot s of cluster c is at
            `start_C[c] + r * row_stride_C[c] + s * slot_stride`.
        start_C: Where each cluster starts.
        row_stride_C: Distance between rows, for each cluster.
        slot_stride: Distance between slots.
        slots: Number of slots of the largest cluster.
        highest_RC: The highest log-probability of each cluster.
    """

    values_F: Tensor
    start_C: Tensor
    row_stride_C: Tensor
    slot_stride: int
    slots: int
    highest_RC: Tensor


@dataclass(frozen=True)
class WordsByCluster:
    """The words of a two-level layer and their products with hidden vectors.

    Attributes:
        vectors: Word vectors (C, S, D) or (V, D), as described by `rows`.
        bias: Word biases (C, S) or (V,), or None.
        word_CS: The word in each slot.
        rows: Where the words are stored.
        form: The form of products of (row, cluster) pairs, as in `cluster_softmax.ByCluster`.
    """

    vectors: Tensor
    bias: Tensor | None
    word_CS: Tensor
    rows: WordRows
    form: Form

    @cached
    def even(self) -> bool:
        """Whether the words are in a slab, in clusters of nearly one size."""
        sizes = self.rows.sizes
        return self.rows.in_slab and len(sizes) * max(sizes) <= _EVEN * sum(sizes)

    @cached
    def offset_CS(self) -> Tensor:
        """What is added to each word's product: its bias or 0, and -inf in an empty slot."""
        blank_CS = self.rows.blank_CS.to(at_least_float32(self.vectors[:0]).dtype)
        return blank_CS if self.bias is None else blank_CS + self.rows.by_slot(self.rows.flat(self.bias))

    def product_for(self, hidden_RD: Tensor) -> Product:
        """Choose the fastest way to multiply these vectors with all words."""
        if is_tracing():
            return Product.VECTORS_FIRST
        rows, learns = len(hidden_RD), torch.is_grad_enabled()
        words_FD = self.rows.flat(self.vectors)
        if rows > products.FEWEST and not learns and products.is_onednns(words_FD, hidden_RD):
            return Product.WORDS_FIRST
        on_cpu = hidden_RD.device.type == "cpu" and hidden_RD.dtype == torch.float32
        if not self.rows.in_slab or not on_cpu:
            return Product.VECTORS_FIRST
        elements = self.vectors[0].numel()
        if rows <= _FEW_EVEN and elements >= _LARGE_EVEN and not learns:
            if self.even and not products.words_first():
                return Product.EVEN_CLUSTERS
            if elements >= _LARGE and rows <= products.FEW_VECTORS:
                return Product.EACH_CLUSTER
        return Product.BATCHED if rows <= _FEW_BATCHED and products.words_first() else Product.VECTORS_FIRST

    def scores_of_all(self, hidden_RD: Tensor) -> Tensor:
        """Return (R, C, S) scores of all words, -inf in empty slots; slots beyond the largest cluster may be cut."""
        product, words_FD = self.product_for(hidden_RD), self.rows.flat(self.vectors)
        rows, (clusters, slots) = hidden_RD.size(0), self.word_CS.shape
        if product == Product.WORDS_FIRST:
            scores_FR = products.onednn_linear(words_FD, hidden_RD)
            if not self.rows.in_slab:
                scores_FR = scores_FR.index_select(0, self.rows.row_F)
            scores_RCS = scores_FR.view(clusters, slots, rows).permute(2, 0, 1)
            return torch.add(scores_RCS, self.offset_CS, out=scores_FR.new_empty(rows, clusters, slots))
        if product == Product.VECTORS_FIRST and self.rows.in_slab:
            scores_RF = at_least_float32(hidden_RD @ words_FD.T)
            scores_RF += self.offset_CS.flatten()
            return scores_RF.view(rows, clusters, slots)
        if product == Product.VECTORS_FIRST:
            scores_RF = at_least_float32(products.linear(hidden_RD, words_FD))
            scores_RF = scores_RF.index_select(1, self.rows.row_F)
            return scores_RF.view(rows, clusters, slots).add_(self.offset_CS)
        if product == Product.EVEN_CLUSTERS:
            reached_CSD = self.vectors[:, : max(self.rows.sizes)]
            hidden_CRD = hidden_RD.expand(clusters, -1, -1)
            if rows <= products.FEW_VECTORS:
                scores_CRS = torch.bmm(hidden_CRD, reached_CSD.transpose(1, 2))
            else:
                scores_CRS = torch.bmm(reached_CSD, hidden_CRD.transpose(1, 2)).transpose(1, 2)
            offset_CS = self.offset_CS[:, : reached_CSD.shape[1]]
            return torch.add(scores_CRS.transpose(0, 1), offset_CS, out=hidden_RD.new_empty(rows, *offset_CS.shape))
        if product == Product.BATCHED:
            scores_CSR = torch.bmm(self.vectors, hidden_RD.repeat(clusters, 1, 1).transpose(1, 2))
            return scores_CSR.permute(2, 0, 1) + self.offset_CS
        words_by_cluster = self.rows.by_cluster(self.vectors)
        if products.words_first():
            columns_DX = hidden_RD.T if rows > 1 else products.columns_of(hidden_RD[0])
            scores_CSX = hidden_RD.new_zeros(clusters, slots, columns_DX.shape[1])
            for words_SD, scores_SX in zip(words_by_cluster, self.rows.by_cluster(scores_CSX), strict=True):
                torch.mm(words_SD, columns_DX, out=scores_SX)
            return scores_CSX.permute(2, 0, 1)[:rows].contiguous() + self.offset_CS
        scores_RCS = hidden_RD.new_zeros(rows, clusters, slots)
        pieces = self.rows.by_cluster(scores_RCS.permute(1, 2, 0))
        for words_SD, scores_SR in zip(words_by_cluster, pieces, strict=True):
            torch.mm(hidden_RD, words_SD.T, out=scores_SR.T)
        return scores_RCS.add_(self.offset_CS)

    def in_cluster(self, hidden_RD: Tensor) -> InCluster:
        """Return log P(w | c, h) of all words, in the layout in which they are computed fastest."""
        if hidden_RD.device.type == "cpu":
            scores = len(hidden_RD) * sum(self.rows.sizes)
            if self.product_for(hidden_RD) == Product.WORDS_FIRST:
                if len(hidden_RD) >= _MANY_ROWS:
                    return self._normalized_by_cluster(hidden_RD)
            elif self.even and scores > _FEW_OF_EVEN:
                return self._normalized_by_several(hidden_RD)
            elif not self.even and scores > _FEW_SCORES[products.words_first()]:
                return self._normalized_by_cluster(hidden_RD)
        in_cluster_RCS = self.scores_of_all(hidden_RD).log_softmax(dim=2)
        _, clusters, slots = in_cluster_RCS.shape
        start_C = slots * torch.arange(clusters, device=hidden_RD.device)
        row_stride_C = torch.full_like(start_C, clusters * slots)
        return InCluster(in_cluster_RCS.flatten(), start_C, row_stride_C, 1, slots, in_cluster_RCS.amax(dim=2))

    def _normalized_by_several(self, hidden_RD: Tensor) -> InCluster:
        """Use a product for several clusters, without the slots that are empty in all of them."""
        rows, sizes = len(hidden_RD), self.rows.sizes
        # A power of two, so that threads share the clusters evenly.
        together = 2 ** int(math.log2(max(1, _TOGETHER // (rows * max(sizes)))))
        slots_P = [max(sizes[first : first + together]) for first in range(0, len(sizes), together)]
        row_stride_C = torch.tensor(slots_P).repeat_interleave(together)[: len(sizes)]
        start_C = rows * (row_stride_C.cumsum(dim=0) - row_stride_C)
        words_first = rows <= products.FEW_VECTORS and products.words_first()
        values_F = self.offset_CS.new_empty(rows * int(row_stride_C.sum()))
        highest_CR = self.offset_CS.new_empty(len(sizes), rows)
        start = 0
        for part, slots in enumerate(slots_P):
            clusters = slice(part * together, (part + 1) * together)
            words_BSD = self.vectors[clusters, :slots]
            hidden_BRD = hidden_RD.expand(len(words_BSD), -1, -1)
            scores_BRS = torch.bmm(words_BSD, hidden_BRD.mT).mT if words_first else torch.bmm(hidden_BRD, words_BSD.mT)
            scores_BRS = at_least_float32(scores_BRS).add_(self.offset_CS[clusters, None, :slots])
            values_BRS = values_F[start : start + scores_BRS.numel()].view(scores_BRS.shape)
            start += scores_BRS.numel()
            torch.log_softmax(scores_BRS, dim=2, out=values_BRS)
            torch.amax(values_BRS, dim=2, out=highest_CR[clusters])
        return InCluster(values_F, start_C, row_stride_C, 1, max(sizes), highest_CR.T)

    def _normalized_by_cluster(self, hidden_RD: Tensor) -> InCluster:
        """Normalize one cluster at a time, without empty slots."""
        rows, sizes = len(hidden_RD), self.rows.sizes
        values_VR = self.offset_CS.new_empty(sum(sizes), rows)
        highest_CR = self.offset_CS.new_empty(len(sizes), rows)
        pieces = values_VR.split(sizes), self._scores_by_cluster(hidden_RD)
        for cluster, (values_SR, scores_SR) in enumerate(zip(*pieces, strict=True)):
            scores_SR += self.offset_CS[cluster, : len(values_SR), None]
            torch.log_softmax(scores_SR, dim=0, out=values_SR)
            torch.amax(values_SR, dim=0, out=highest_CR[cluster])
        start_C = rows * (self.rows.size_C.cumsum(dim=0) - self.rows.size_C)
        return InCluster(values_VR.flatten(), start_C, torch.ones_like(start_C), rows, max(sizes), highest_CR.T)

    def _scores_by_cluster(self, hidden_RD: Tensor) -> Iterable[Tensor]:
        """Return the (S, R) products of each cluster's words with all rows.

        They come from one product with all words where that is much faster, and otherwise one after another, so that
        each is still in cache when it is normalized.
        """
        if self.product_for(hidden_RD) == Product.WORDS_FIRST:
            scores_FR = products.onednn_linear(self.rows.flat(self.vectors), hidden_RD)
            return self.rows.by_cluster(scores_FR.view(*self.vectors.shape[:-1], -1))
        hidden_DR = hidden_RD.T.contiguous()
        vectors_first = len(hidden_RD) <= products.FEW_VECTORS and not products.words_first()
        return (
            at_least_float32((hidden_RD @ words_SD.T).T if vectors_first else words_SD @ hidden_DR)
            for words_SD in self.rows.by_cluster(self.vectors)
        )

    def scores_of_row(self, hidden_D: Tensor, cluster_M: Tensor) -> Tensor:
        """Return the (M, S) scores of the words of some clusters for one row, -inf in empty slots."""
        columns_DX = products.columns_of(hidden_D)
        scores_MSX = columns_DX.new_full((len(cluster_M), self.rows.slots, columns_DX.shape[1]), -torch.inf)
        for scores_SX, cluster in zip(scores_MSX.unbind(), cluster_M.tolist(), strict=True):
            words_SD = self.rows.of_cluster(self.vectors, cluster)
            torch.mm(words_SD, columns_DX, out=scores_SX.narrow(0, 0, len(words_SD)))
        scores_MS = at_least_float32(scores_MSX[:, :, 0])
        return scores_MS if self.bias is None else scores_MS + self.rows.of_clusters(self.bias, cluster_M)
