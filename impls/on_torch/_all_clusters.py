"""The k likeliest words of rows for which every cluster of a two-level layer is scored, as of flat distributions.

By one product for all words or one a cluster; the k best are looked for in the k clusters of the best bests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from impls.on_torch import _products
from impls.on_torch._best import best
from impls.on_torch._layer import at_least_float32
from impls.on_torch._words_by_cluster import WordsByCluster

# Of all rows: so few are made by one product and not by one for each cluster, where words go first in products of few
# vectors and where vectors do.
_FEW_SCORES = {True: 2**18, False: 2**21}


def best_of_all(hidden_RD: Tensor, log_cluster_RC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids (R, K), every cluster scored."""
    # On a CPU one product a cluster, whose scores stay in cache, beats one for all where there is much to score.
    by_cluster = hidden_RD.device.type == "cpu" and (
        len(hidden_RD) * int(words.size_C.sum()) > _FEW_SCORES[_products.words_first()]
    )
    scored = _scored_by_cluster(hidden_RD, words) if by_cluster else _scored_at_once(hidden_RD, words)
    # k words lie in at most k clusters, those of the k highest bests; one more tells whether a tie was left out.
    wide = min(k + 1, len(words.size_C))
    bests_RM, chosen_RM = torch.topk(scored.highest_RC + log_cluster_RC, wide, dim=1)
    values_RK, ids_RK = _best_of_scored(scored, log_cluster_RC, chosen_RM[:, :k], words, k)
    if wide > k:
        tied = (bests_RM[:, k] >= values_RK[:, -1]).nonzero()[:, 0]
        if len(tied):
            chosen_TC = torch.arange(len(words.size_C), device=tied.device).expand(len(tied), -1)
            some = _Scored(scored.in_cluster_RF[tied], scored.start_C, scored.highest_RC[tied])
            found = _best_of_scored(some, log_cluster_RC[tied], chosen_TC, words, k)
            values_RK[tied], ids_RK[tied] = found
    return values_RK, ids_RK


def best_of_joint(hidden_RD: Tensor, log_cluster_RC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids (R, K), every word scored at once and none set aside."""
    joint_RCS = words.joint_of_all(hidden_RD, log_cluster_RC)
    ids_F = words.word_CS[:, : joint_RCS.shape[2]].flatten()
    return best(joint_RCS.flatten(1), k, lambda rows_R, column_RM: ids_F[column_RM])


@dataclass(frozen=True)
class _Scored:
    """All words of some rows.

    Attributes:
        in_cluster_RF: log P(w | c, h), clusters side by side.
        start_C: Where each cluster's words begin.
        highest_RC: The highest of each cluster.
    """

    in_cluster_RF: Tensor
    start_C: Tensor
    highest_RC: Tensor


def _scored_by_cluster(hidden_RD: Tensor, words: WordsByCluster) -> _Scored:
    """Without the empty slots; a cluster's scores stay in cache from their product to their highest."""
    hidden_DR = hidden_RD.T.contiguous()
    vectors_first = len(hidden_RD) <= _products.FEW_VECTORS and not _products.words_first()
    sizes = words.size_C.tolist()
    in_cluster_VR = words.added_CS.new_empty(sum(sizes), len(hidden_RD))
    highest_CR = words.added_CS.new_empty(len(sizes), len(hidden_RD))
    for cluster, piece_SR in enumerate(in_cluster_VR.split(sizes)):
        size = len(piece_SR)
        words_SD = words.slab_CSD[cluster].narrow(0, 0, size)
        scores_SR = at_least_float32((hidden_RD @ words_SD.T).T if vectors_first else words_SD @ hidden_DR)
        scores_SR += words.added_CS[cluster, :size, None]
        torch.log_softmax(scores_SR, dim=0, out=piece_SR)
        torch.amax(piece_SR, dim=0, out=highest_CR[cluster])
    return _Scored(in_cluster_VR.T, words.size_C.cumsum(dim=0) - words.size_C, highest_CR.T)


def _scored_at_once(hidden_RD: Tensor, words: WordsByCluster) -> _Scored:
    in_cluster_RCS = words.scores_of_all(hidden_RD).log_softmax(dim=2)
    clusters, width = in_cluster_RCS.shape[1:]
    start_C = width * torch.arange(clusters, device=hidden_RD.device)
    return _Scored(in_cluster_RCS.flatten(1), start_C, in_cluster_RCS.amax(dim=2))


def _best_of_scored(
    scored: _Scored, log_cluster_RC: Tensor, chosen_RM: Tensor, words: WordsByCluster, k: int
) -> tuple[Tensor, Tensor]:
    """The k best words of each row's chosen clusters."""
    width = words.word_CS.shape[1]
    slot_S = torch.arange(width, device=chosen_RM.device)
    # A cluster's empty slots are read as its last word's neighbours and made -inf.
    place_RMS = (scored.start_C[chosen_RM][:, :, None] + slot_S).clamp_(max=scored.in_cluster_RF.shape[1] - 1)
    joint_RMS = scored.in_cluster_RF.gather(1, place_RMS.flatten(1)).view(place_RMS.shape)
    joint_RMS += log_cluster_RC.gather(1, chosen_RM)[:, :, None]
    joint_RMS.masked_fill_(slot_S >= words.size_C[chosen_RM][:, :, None], -torch.inf)

    def ids_of(rows_R: Tensor, column_RM: Tensor) -> Tensor:
        return words.word_CS[chosen_RM[rows_R].gather(1, column_RM // width), column_RM % width]

    return best(joint_RMS.flatten(1), k, ids_of)
