"""Exact top-k of a two-level layer without the whole vocabulary.

No word of a cluster is likelier than the cluster, so clusters are expanded by falling P(c): the first few of each row
in one batch, then those whose P(c) reaches the k-th best word found, which are all that can still matter. Rows for
which these are most of the clusters, as of a flat distribution, are scored whole, by one product a cluster
or one for all, and the k best words are looked for in the k clusters of the best bests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from impls.on_torch import _clusters
from impls.on_torch._best import best, best_of_pairs
from impls.on_torch._layer import at_least_float32

_FIRST_CLUSTERS = 6  # expanded before the certificate is looked at
_FEW_PAIRS = 32  # (row, cluster) pairs up to which one product each is cheaper than sorting them
_WHOLE_SHARE = 0.15  # of all (row, cluster) pairs: above it one product for all is cheaper than gathered ones


@dataclass(frozen=True)
class WordsByCluster:
    """The lower level of a two-level layer.

    Attributes:
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: The word in each slot; V where the slot is empty.
        vocab: V.
    """

    slab_CSD: Tensor
    bias_CS: Tensor | None
    word_CS: Tensor
    vocab: int

    def joint(self, hidden_RD: Tensor, log_cluster_RC: Tensor, row_P: Tensor, cluster_P: Tensor) -> Tensor:
        """(P, S) log P(c, w | h) of the words of chosen (row, cluster) pairs; -inf in an empty slot."""
        scores_PS = self.added(cluster_P)
        if len(row_P) <= _FEW_PAIRS:
            pairs = zip(row_P.tolist(), cluster_P.tolist(), strict=True)
            scores_PS += torch.stack([self.slab_CSD[cluster] @ hidden_RD[row] for row, cluster in pairs])
        else:
            batch = _clusters.ByCluster.of(cluster_P, torch.zeros_like(cluster_P), len(self.slab_CSD))
            sorted_PS = _clusters.scores(hidden_RD[row_P[batch.order_N]], self.slab_CSD, batch)
            scores_PS.index_add_(0, batch.order_N, at_least_float32(sorted_PS))
        # An empty cluster's sum is -inf; its slots must stay -inf in place of becoming -inf + inf.
        shift_P = (log_cluster_RC[row_P, cluster_P] - torch.logsumexp(scores_PS, dim=1)).nan_to_num_(posinf=0.0)
        return scores_PS.add_(shift_P[:, None])

    def added(self, cluster_P: Tensor | slice) -> Tensor:
        """(P, S) what a word's score gets on top: its bias, or -inf in an empty slot."""
        empty_PS = self.word_CS[cluster_P] == self.vocab
        kind = at_least_float32(self.slab_CSD[:0]).dtype
        if self.bias_CS is None:
            return torch.zeros(empty_PS.shape, dtype=kind, device=empty_PS.device).masked_fill_(empty_PS, -torch.inf)
        return self.bias_CS[cluster_P].to(kind).masked_fill(empty_PS, -torch.inf)


def search(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values and ids (N, K) of the k likeliest words, and (N,) the share of clusters expanded.

    Args:
        hidden_ND: What the word vectors are multiplied with, in their dtype.
        log_cluster_NC: log P(c | h).
        words: The words of each cluster.
        k: From 1 to V.
    """
    clusters, width = words.word_CS.shape
    first = min(clusters, max(_FIRST_CLUSTERS, -(-k // width)))
    # With more than `first` words asked for, one cluster at least gives two, so the k-th is at most half the likeliest
    # cluster: where many clusters reach that half, the first few cannot settle the row.
    half_N1 = log_cluster_NC.amax(dim=1, keepdim=True) - math.log(2.0)
    flat_N = (log_cluster_NC >= half_N1).sum(dim=1) > _WHOLE_SHARE * clusters
    if k > first and flat_N.all():
        ones_N = torch.ones(len(hidden_ND), device=hidden_ND.device)
        return *_best_of_all(hidden_ND, log_cluster_NC, words, k), ones_N
    return _best_by_bounds(hidden_ND, log_cluster_NC, words, k, first)


def likeliest_of_clusters(
    hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, width: int
) -> tuple[Tensor, Tensor]:
    """Values and ids (N, K) of the k likeliest words of each row's `width` likeliest clusters."""
    chosen_NW = torch.topk(log_cluster_NC, min(width, log_cluster_NC.shape[1]), dim=1).indices
    return _best_of_expanded(hidden_ND, log_cluster_NC, words, chosen_NW, k)


def _best_of_expanded(
    hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, chosen_NM: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    (rows, expanded), width = chosen_NM.shape, words.word_CS.shape[1]
    row_P = torch.arange(rows, device=hidden_ND.device).repeat_interleave(expanded)
    joint_NF = words.joint(hidden_ND, log_cluster_NC, row_P, chosen_NM.flatten()).view(rows, -1)

    def ids_of(rows_R: Tensor, column_RM: Tensor) -> Tensor:
        return words.word_CS[chosen_NM[rows_R].gather(1, column_RM // width), column_RM % width]

    return best(joint_NF, k, ids_of)


def _best_by_bounds(
    hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    rows, clusters = log_cluster_NC.shape
    falling_NM, chosen_NM = torch.topk(log_cluster_NC, min(first + 1, clusters), dim=1)
    chosen_NM = chosen_NM[:, :first]
    values_NK, ids_NK = _best_of_expanded(hidden_ND, log_cluster_NC, words, chosen_NM, k)
    share_N = torch.full((rows,), first / clusters, device=hidden_ND.device)
    if first == clusters:
        return values_NK, ids_NK, share_N

    # At equality a word of lower id may still come: only a bound strictly below settles a row.
    open_R = (falling_NM[:, first] >= values_NK[:, -1]).nonzero()[:, 0]
    if len(open_R):
        hidden_RD, log_cluster_RC = hidden_ND[open_R], log_cluster_NC[open_R]
        needed_RC = log_cluster_RC >= values_NK[open_R, -1:]
        share_R = needed_RC.float().mean(dim=1)
        if share_R.mean() > _WHOLE_SHARE:
            found, share_N[open_R] = _best_of_all(hidden_RD, log_cluster_RC, words, k), 1.0
        else:
            needed_RC.scatter_(1, chosen_NM[open_R], False)
            found = _joined_by_needed(values_NK[open_R], ids_NK[open_R], hidden_RD, log_cluster_RC, needed_RC, words)
            share_N[open_R] = share_R.clamp(min=first / clusters)
        values_NK[open_R], ids_NK[open_R] = found
    return values_NK, ids_NK, share_N


def _joined_by_needed(
    values_RK: Tensor, ids_RK: Tensor, hidden_RD: Tensor, log_cluster_RC: Tensor, needed_RC: Tensor,
    words: WordsByCluster,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The best so far with the words of the needed clusters, of which only those that reach the k-th best count."""
    rows, k = values_RK.shape
    row_P, cluster_P = needed_RC.nonzero(as_tuple=True)
    joint_PS = words.joint(hidden_RD, log_cluster_RC, row_P, cluster_P)
    pair_Q, slot_Q = (joint_PS >= values_RK[row_P, -1:]).nonzero(as_tuple=True)
    every_R = torch.arange(rows, device=row_P.device).repeat_interleave(k)
    return best_of_pairs(
        torch.cat([every_R, row_P[pair_Q]]),
        torch.cat([values_RK.flatten(), joint_PS[pair_Q, slot_Q]]),
        torch.cat([ids_RK.flatten(), words.word_CS[cluster_P[pair_Q], slot_Q]]),
        rows,
        k,
    )


def _best_of_all(hidden_RD: Tensor, log_cluster_RC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor]:
    # One product a cluster costs a call each, empty slots a third more work: worth it from a few rows on.
    every = _scored_by_cluster if hidden_RD.device.type == "cpu" and len(hidden_RD) > 4 else _scored_at_once
    scores_RF, place_CS, highest_RC, log_sum_RC = every(hidden_RD, words)
    shift_RC = torch.where(torch.isneginf(highest_RC), highest_RC, log_cluster_RC - log_sum_RC)
    # k words lie in at most k clusters, those of the k highest bests; one more tells whether a tie was left out.
    wide = min(k + 1, shift_RC.shape[1])
    bests_RM, chosen_RM = torch.topk(highest_RC + shift_RC, wide, dim=1)
    values_RK, ids_RK = _best_of_chosen(scores_RF, shift_RC, chosen_RM[:, :k], words, place_CS, k)
    if wide > k:
        tied = (bests_RM[:, k] >= values_RK[:, -1]).nonzero()[:, 0]
        if len(tied):
            chosen_TC = torch.arange(shift_RC.shape[1], device=tied.device).expand(len(tied), -1)
            found = _best_of_chosen(scores_RF[tied], shift_RC[tied], chosen_TC, words, place_CS, k)
            values_RK[tied], ids_RK[tied] = found
    return values_RK, ids_RK


def _best_of_chosen(
    scores_RF: Tensor, shift_RC: Tensor, chosen_RM: Tensor, words: WordsByCluster, place_CS: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    width = words.word_CS.shape[1]
    place_RF = place_CS[chosen_RM].flatten(1).clamp_(max=scores_RF.shape[1] - 1)
    joint_RF = scores_RF.gather(1, place_RF) + shift_RC.gather(1, chosen_RM).repeat_interleave(width, 1)
    joint_RF = joint_RF.masked_fill_((words.word_CS == words.vocab)[chosen_RM].flatten(1), -torch.inf)

    def ids_of(rows_R: Tensor, column_RM: Tensor) -> Tensor:
        return words.word_CS[chosen_RM[rows_R].gather(1, column_RM // width), column_RM % width]

    return best(joint_RF, k, ids_of)


Scored = tuple[Tensor, Tensor, Tensor, Tensor]  # (R, F) scores, (C, S) columns, (R, C) maximum and log-sum-exp


def _scored_by_cluster(hidden_RD: Tensor, words: WordsByCluster) -> Scored:
    """Without the empty slots; a cluster's scores stay in cache from their product to their sum."""
    sizes_C = (words.word_CS != words.vocab).sum(dim=1)
    kind = at_least_float32(hidden_RD[:0]).dtype
    scores_VR = torch.empty(words.vocab, len(hidden_RD), dtype=kind)
    highest_CR = torch.full((len(sizes_C), len(hidden_RD)), -torch.inf, dtype=kind)
    sum_CR = torch.zeros_like(highest_CR)
    hidden_DR = hidden_RD.T.contiguous()
    added_CS = words.added(slice(None))
    for cluster, piece_SR in enumerate(scores_VR.split(sizes_C.tolist())):
        size = len(piece_SR)
        if size:
            if kind == hidden_DR.dtype:
                torch.mm(words.slab_CSD[cluster, :size], hidden_DR, out=piece_SR)
            else:
                piece_SR.copy_(words.slab_CSD[cluster, :size] @ hidden_DR)
            piece_SR += added_CS[cluster, :size, None]
            torch.amax(piece_SR, dim=0, out=highest_CR[cluster])
            torch.sum((piece_SR - highest_CR[cluster]).exp_(), dim=0, out=sum_CR[cluster])
    slot_S = torch.arange(words.word_CS.shape[1])
    place_CS = (sizes_C.cumsum(dim=0) - sizes_C)[:, None] + slot_S
    return scores_VR.T, place_CS, highest_CR.T, sum_CR.log_().add_(highest_CR).T


def _scored_at_once(hidden_RD: Tensor, words: WordsByCluster) -> Scored:
    clusters, width, dim = words.slab_CSD.shape
    scores_RF = at_least_float32(hidden_RD @ words.slab_CSD.view(-1, dim).T)
    scores_RF += words.added(slice(None)).flatten()
    scores_RCS = scores_RF.view(-1, clusters, width)
    place_CS = torch.arange(clusters * width, device=scores_RF.device).view(clusters, width)
    return scores_RF, place_CS, scores_RCS.amax(dim=2), torch.logsumexp(scores_RCS, dim=2)
