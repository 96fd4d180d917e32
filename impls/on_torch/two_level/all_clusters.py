"""The k likeliest words of rows for which every cluster of a two-level layer is scored, as of flat distributions.

By one product for all words, one for some clusters or one a cluster; the k best are looked for in the k clusters of the
best bests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vocabench.impls.on_torch.layer import at_least_float32
from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.ops.topk import best, best_columns
from vocabench.impls.on_torch.triton import availability
from vocabench.impls.on_torch.two_level.words_by_cluster import WordsByCluster

# Scores of all rows: so few are made by one product. More by one for some clusters where these are of nearly one size;
# else by one a cluster, where words go first in products of few vectors and where vectors do.
_FEW_OF_EVEN, _FEW_SCORES = 2**17, {True: 2**18, False: 2**21}
_MANY_ROWS = 32  # by one product, from which on its scores are gone through a cluster at a time
_TOGETHER = 2**18  # scores of one product for some clusters: they stay in cache until each cluster's highest is known


def best_of_all(hidden_RD: Tensor, log_cluster_RC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids (R, K), every cluster scored."""
    scored = _scored(hidden_RD, words)
    # k words lie in at most k clusters, those of the k highest bests; one more tells whether a tie was left out.
    wide = min(k + 1, len(words.rows.size_C))
    bests_RM, chosen_RM = torch.topk(scored.highest_RC + log_cluster_RC, wide, dim=1)
    every_R = torch.arange(len(hidden_RD), device=hidden_RD.device)
    values_RK, ids_RK = _best_of_scored(scored, every_R, log_cluster_RC, chosen_RM[:, :k], words, k)
    if wide > k:
        tied = (bests_RM[:, k] >= values_RK[:, -1]).nonzero()[:, 0]
        if len(tied):
            chosen_TC = torch.arange(len(words.rows.size_C), device=tied.device).expand(len(tied), -1)
            values_RK[tied], ids_RK[tied] = _best_of_scored(scored, tied, log_cluster_RC[tied], chosen_TC, words, k)
    return values_RK, ids_RK


def best_of_joint(hidden_RD: Tensor, log_cluster_RC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids (R, K), every word scored at once and none set aside."""
    if words.rows.in_slab and availability.runs_on(hidden_RD):
        from vocabench.impls.on_torch.triton import topk_kernels  # imports Triton, which not every installation has

        if k <= topk_kernels.MOST and topk_kernels.takes(words.word_CS):
            scores_RCS = words.rows.by_slot(hidden_RD @ words.rows.flat(words.vectors).T)
            given = scores_RCS, words.added_CS, log_cluster_RC, words.word_CS
            return topk_kernels.best_of_clusters(*given, k)
    joint_RCS = words.joint_of_all(hidden_RD, log_cluster_RC)
    return best_columns(joint_RCS.flatten(1), words.word_CS[:, : joint_RCS.shape[2]].flatten(), k)


@dataclass(frozen=True)
class _Scored:
    """All words of some rows.

    Attributes:
        in_cluster_F: log P(w | c, h). That of row r and the word in slot s of cluster c is at
            `start_C[c] + r * of_row_C[c] + s * of_slot`.
        slots: Of the largest cluster.
        highest_RC: The highest of each cluster.
    """

    in_cluster_F: Tensor
    start_C: Tensor
    of_row_C: Tensor
    of_slot: int
    slots: int
    highest_RC: Tensor


def _scored(hidden_RD: Tensor, words: WordsByCluster) -> _Scored:
    if hidden_RD.device.type == "cpu":
        scores = len(hidden_RD) * sum(words.rows.sizes)
        if words.by_one_product(hidden_RD):
            return (_scored_at_once if len(hidden_RD) < _MANY_ROWS else _scored_by_cluster)(hidden_RD, words)
        if words.even and scores > _FEW_OF_EVEN:
            return _scored_by_some_clusters(hidden_RD, words)
        if not words.even and scores > _FEW_SCORES[products.words_first()]:
            return _scored_by_cluster(hidden_RD, words)
    return _scored_at_once(hidden_RD, words)


def _scored_by_some_clusters(hidden_RD: Tensor, words: WordsByCluster) -> _Scored:
    """Without the slots that are empty in all clusters of a product."""
    rows, sizes = len(hidden_RD), words.rows.sizes
    # A power of two, so that threads share them evenly.
    together = 2 ** int(math.log2(max(1, _TOGETHER // (rows * max(sizes)))))
    slots_P = [max(sizes[first : first + together]) for first in range(0, len(sizes), together)]
    of_row_C = torch.tensor(slots_P).repeat_interleave(together)[: len(sizes)]
    start_C = rows * (of_row_C.cumsum(dim=0) - of_row_C)
    words_first = rows <= products.FEW_VECTORS and products.words_first()
    in_cluster_F = words.added_CS.new_empty(rows * int(of_row_C.sum()))
    highest_CR = words.added_CS.new_empty(len(sizes), rows)
    start = 0
    for part, slots in enumerate(slots_P):
        some = slice(part * together, (part + 1) * together)
        words_BSD = words.vectors[some, :slots]
        hidden_BRD = hidden_RD.expand(len(words_BSD), -1, -1)
        scores_BRS = torch.bmm(words_BSD, hidden_BRD.mT).mT if words_first else torch.bmm(hidden_BRD, words_BSD.mT)
        scores_BRS = at_least_float32(scores_BRS).add_(words.added_CS[some, None, :slots])
        part_BRS = in_cluster_F[start : start + scores_BRS.numel()].view(scores_BRS.shape)
        start += scores_BRS.numel()
        torch.log_softmax(scores_BRS, dim=2, out=part_BRS)
        torch.amax(part_BRS, dim=2, out=highest_CR[some])
    return _Scored(in_cluster_F, start_C, of_row_C, 1, max(sizes), highest_CR.T)


def _scored_by_cluster(hidden_RD: Tensor, words: WordsByCluster) -> _Scored:
    """Without the empty slots."""
    rows, sizes = len(hidden_RD), words.rows.sizes
    in_cluster_VR = words.added_CS.new_empty(sum(sizes), rows)
    highest_CR = words.added_CS.new_empty(len(sizes), rows)
    pieces = in_cluster_VR.split(sizes), _scores_of_clusters(hidden_RD, words)
    for cluster, (piece_SR, scores_SR) in enumerate(zip(*pieces, strict=True)):
        scores_SR += words.added_CS[cluster, : len(piece_SR), None]
        torch.log_softmax(scores_SR, dim=0, out=piece_SR)
        torch.amax(piece_SR, dim=0, out=highest_CR[cluster])
    start_C = rows * (words.rows.size_C.cumsum(dim=0) - words.rows.size_C)
    return _Scored(in_cluster_VR.flatten(), start_C, torch.ones_like(start_C), rows, max(sizes), highest_CR.T)


def _scores_of_clusters(hidden_RD: Tensor, words: WordsByCluster) -> Iterable[Tensor]:
    """(S, R) products of each cluster's words with all rows: one after the other while they are in cache, or all by one
    product where that is the faster by far."""
    if words.by_one_product(hidden_RD):
        scores_FR = products.linear(words.rows.flat(words.vectors), hidden_RD)
        return words.rows.by_cluster(scores_FR.view(*words.vectors.shape[:-1], -1))
    hidden_DR = hidden_RD.T.contiguous()
    vectors_first = len(hidden_RD) <= products.FEW_VECTORS and not products.words_first()
    return (
        at_least_float32((hidden_RD @ words_SD.T).T if vectors_first else words_SD @ hidden_DR)
        for words_SD in words.rows.by_cluster(words.vectors)
    )


def _scored_at_once(hidden_RD: Tensor, words: WordsByCluster) -> _Scored:
    in_cluster_RCS = words.scores_of_all(hidden_RD).log_softmax(dim=2)
    _, clusters, slots = in_cluster_RCS.shape
    start_C = slots * torch.arange(clusters, device=hidden_RD.device)
    of_row_C = torch.full_like(start_C, clusters * slots)
    return _Scored(in_cluster_RCS.flatten(), start_C, of_row_C, 1, slots, in_cluster_RCS.amax(dim=2))


def _best_of_scored(
    scored: _Scored, rows_R: Tensor, log_cluster_RC: Tensor, chosen_RM: Tensor, words: WordsByCluster, k: int
) -> tuple[Tensor, Tensor]:
    """The k best words of each row's chosen clusters."""
    slots = scored.slots
    slot_S = torch.arange(slots, device=chosen_RM.device)
    start_RM = scored.start_C[chosen_RM] + rows_R[:, None] * scored.of_row_C[chosen_RM]
    place_RMS = start_RM[:, :, None] + slot_S * scored.of_slot
    # What is read for a cluster's empty slots is some other word's, and made -inf.
    joint_RMS = scored.in_cluster_F[place_RMS.clamp_(max=len(scored.in_cluster_F) - 1)]
    joint_RMS += log_cluster_RC.gather(1, chosen_RM)[:, :, None]
    joint_RMS.masked_fill_(slot_S >= words.rows.size_C[chosen_RM][:, :, None], -torch.inf)

    def ids_of(rows_T: Tensor, column_TM: Tensor) -> Tensor:
        return words.word_CS[chosen_RM[rows_T].gather(1, column_TM // slots), column_TM % slots]

    return best(joint_RMS.flatten(1), k, ids_of)
