"""Exact top-k of a two-level layer without the whole vocabulary.

No word of a cluster is likelier than the cluster, so clusters are expanded by falling P(c): the first few of each row
in one batch, then those whose P(c) reaches the k-th best word found, which are all that can still matter. Rows for
which these are most of the clusters, as of a flat distribution, are scored whole: one product a cluster, and the k
best words are looked for in the k clusters of the best bests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from impls.on_torch import _clusters
from impls.on_torch._best import best
from impls.on_torch._layer import at_least_float32

_FIRST_CLUSTERS = 8  # expanded before the certificate is looked at
_WHOLE_SHARE = 0.3  # of all (row, cluster) pairs: above it one product for all is cheaper than gathered ones


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
        batch = _clusters.ByCluster.of(cluster_P, torch.zeros_like(cluster_P), len(self.slab_CSD))
        sorted_PS = _clusters.scores(hidden_RD[row_P[batch.order_N]], self.slab_CSD, batch)
        scores_PS = torch.empty_like(sorted_PS).index_copy_(0, batch.order_N, sorted_PS)
        return self._normalised(at_least_float32(scores_PS), log_cluster_RC[row_P, cluster_P], cluster_P)

    def _normalised(self, scores_PS: Tensor, log_cluster_P: Tensor, cluster_P: Tensor) -> Tensor:
        if self.bias_CS is not None:
            scores_PS = scores_PS + self.bias_CS[cluster_P]
        scores_PS = scores_PS.masked_fill_(self.word_CS[cluster_P] == self.vocab, -torch.inf)
        # An empty cluster's sum is -inf; its slots must stay -inf in place of becoming -inf + inf.
        log_sum_P = torch.logsumexp(scores_PS, dim=1)
        return scores_PS.add_((log_cluster_P - log_sum_P).nan_to_num_(posinf=0.0)[:, None])


def search(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values and ids (N, K) of the k likeliest words, and (N,) the share of clusters expanded.

    Args:
        hidden_ND: What the word vectors are multiplied with, in their dtype.
        log_cluster_NC: log P(c | h).
        words: The words of each cluster.
        k: From 1 to V.
    """
    rows, clusters = log_cluster_NC.shape
    first = min(_FIRST_CLUSTERS, clusters)
    falling_NM, chosen_NM = torch.topk(log_cluster_NC, min(first + 1, clusters), dim=1)
    row_P = torch.arange(rows, device=hidden_ND.device).repeat_interleave(first)
    joint_PS = words.joint(hidden_ND, log_cluster_NC, row_P, chosen_NM[:, :first].flatten())
    ids_NF = words.word_CS[chosen_NM[:, :first]].flatten(1)
    values_NK, ids_NK = best(_widened(joint_PS.view(rows, -1), k, -torch.inf), _widened(ids_NF, k, words.vocab), k)
    share_N = torch.full((rows,), first / clusters, device=hidden_ND.device)
    if first == clusters:
        return values_NK, ids_NK, share_N

    # At equality a word of lower id may still come: only a bound strictly below settles a row.
    open_R = (falling_NM[:, first] >= values_NK[:, -1]).nonzero()[:, 0]
    if len(open_R):
        needed_RC = log_cluster_NC[open_R] >= values_NK[open_R, -1:]
        whole = needed_RC.sum() > _WHOLE_SHARE * needed_RC.numel()
        find = _best_of_all if whole else _best_of_needed
        values_NK[open_R], ids_NK[open_R] = find(hidden_ND[open_R], log_cluster_NC[open_R], needed_RC, words, k)
        share_N[open_R] = 1.0 if whole else needed_RC.float().mean(dim=1)
    return values_NK, ids_NK, share_N


def _best_of_needed(
    hidden_RD: Tensor, log_cluster_RC: Tensor, needed_RC: Tensor, words: WordsByCluster, k: int
) -> tuple[Tensor, Tensor]:
    """Rows need different numbers of clusters: each has room for the most that one needs."""
    row_P, cluster_P = needed_RC.nonzero(as_tuple=True)
    place_P = (needed_RC.cumsum(dim=1) - 1)[row_P, cluster_P]
    size = (len(hidden_RD), int(place_P.max()) + 1, words.word_CS.shape[1])
    joint_PS = words.joint(hidden_RD, log_cluster_RC, row_P, cluster_P)
    joint_RMS = joint_PS.new_full(size, -torch.inf)
    joint_RMS[row_P, place_P] = joint_PS
    ids_RMS = words.word_CS.new_full(size, words.vocab)
    ids_RMS[row_P, place_P] = words.word_CS[cluster_P]
    return best(joint_RMS.flatten(1), ids_RMS.flatten(1), k)


def _best_of_all(
    hidden_RD: Tensor, log_cluster_RC: Tensor, needed_RC: Tensor, words: WordsByCluster, k: int
) -> tuple[Tensor, Tensor]:
    scores_CSR = at_least_float32(_all_scores(hidden_RD, words))
    if words.bias_CS is not None:
        scores_CSR += words.bias_CS[:, :, None]
    highest_CR = scores_CSR.amax(dim=1)
    empty_C = highest_CR[:, 0] == -torch.inf
    log_sum_CR = torch.logsumexp(scores_CSR, dim=1)
    shift_RC = (log_cluster_RC.T - log_sum_CR).masked_fill_(empty_C[:, None], 0.0).T
    # k words lie in at most k clusters, those of the k highest bests; one more tells whether a tie was left out.
    wide = min(k + 1, len(scores_CSR))
    bests_RM, chosen_RM = torch.topk(highest_CR.T + shift_RC, wide, dim=1)
    chosen_RM = chosen_RM[:, :k]
    rows_R = torch.arange(len(hidden_RD), device=hidden_RD.device)[:, None]
    found_RMS = scores_CSR[chosen_RM, :, rows_R] + shift_RC[rows_R, chosen_RM][:, :, None]
    values_RK, ids_RK = best(found_RMS.flatten(1), words.word_CS[chosen_RM].flatten(1), k)
    if wide > k:
        tied = (bests_RM[:, k] >= values_RK[:, -1]).nonzero()[:, 0]
        if len(tied):
            joint_TF = (scores_CSR[:, :, tied] + shift_RC.T[:, None, tied]).flatten(0, 1).T
            values_RK[tied], ids_RK[tied] = best(joint_TF, words.word_CS.flatten().expand_as(joint_TF), k)
    return values_RK, ids_RK


def _all_scores(hidden_RD: Tensor, words: WordsByCluster) -> Tensor:
    """(C, S, R) products of every word with every row; -inf in an empty slot."""
    slab_CSD = words.slab_CSD
    if slab_CSD.device.type != "cpu":
        scores_CSR = slab_CSD @ hidden_RD.T
        return scores_CSR.masked_fill_((words.word_CS == words.vocab)[:, :, None], -torch.inf)
    # A third of the slots is empty: on the CPU that is more than one call a cluster costs.
    scores_CSR = hidden_RD.new_full((*slab_CSD.shape[:2], len(hidden_RD)), -torch.inf)
    for cluster, size in enumerate((words.word_CS != words.vocab).sum(dim=1).tolist()):
        torch.mm(slab_CSD[cluster, :size], hidden_RD.T, out=scores_CSR[cluster, :size])
    return scores_CSR


def _widened(array_NF: Tensor, k: int, filler: float) -> Tensor:
    """Room for k columns where the first clusters hold fewer words; such a row is always open."""
    missing = max(0, k - array_NF.shape[1])
    return torch.nn.functional.pad(array_NF, (0, missing), value=filler) if missing else array_NF
