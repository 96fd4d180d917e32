"""Exact top-k of a two-level layer without the whole vocabulary.

No word of a cluster is likelier than the cluster, so clusters are expanded by falling P(c): the first few of each row
in one batch, then those whose P(c) reaches the k-th best word found, which are all that can still matter. Rows for
which these are most of the clusters, as of a flat distribution, are scored whole (`all_clusters.py`).
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right

import torch
from torch import Tensor

from vocabench.impls.cpp import CPP
from vocabench.impls.on_torch.ops import cpp_kernels
from vocabench.impls.on_torch.ops.topk import best, best_of_pairs
from vocabench.impls.on_torch.two_level import all_clusters, cluster_softmax
from vocabench.impls.on_torch.two_level.words_by_cluster import WordsByCluster

_FIRST_CLUSTERS = 6  # expanded before the certificate is looked at
_NEXT = 4  # times as many are expanded next, where more than that are wanted: the k-th best so far is far too low
_FEW_ROWS = 4  # rows up to which one after the other, a product for each of its clusters, is faster on a CPU
_WHOLE_SHARE = 0.15  # of a row's clusters: where the first few say that more are wanted, it is scored whole at once
_FLAT_ROWS = 0.25  # of all rows: fewer of them are scored with the others, who want most of the clusters between them
_MANY = 4  # times as many clusters as words asked for: their highest words tell first which clusters to look through
_OPEN_SHARE = 0.4  # of all (row, cluster) pairs: above it one product for all is cheaper than one for each pair
# Slots of all rows: up to so many, a GPU scores them all in the time that it takes to launch anything finer.
_AT_ONCE_ON_GPU = 2**28
# The same on a CPU, for clusters of so many slots: to find out which of them matter takes longer than to score them.
_AT_ONCE_ON_CPU, _FEW_SLOTS = 2**18, 2**13

Found = tuple[Tensor, Tensor, Tensor]  # values and ids (N, K), and (N,) the share of clusters expanded


def search(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int) -> Found:
    """Values and ids (N, K) of the k likeliest words, and (N,) the share of clusters expanded.

    Args:
        hidden_ND: What the word vectors are multiplied with, in their dtype.
        log_cluster_NC: log P(c | h).
        words: The words of each cluster, none of which is empty.
        k: From 1 to V.
    """
    if words.form == CPP:
        given = words.vectors, words.bias, words.word_CS, words.rows
        return cpp_kernels.likeliest(hidden_ND, log_cluster_NC, *given, k)
    clusters, width = words.word_CS.shape
    if _at_once(len(hidden_ND), clusters * width, hidden_ND.is_cuda):
        all_N = torch.ones(len(hidden_ND), device=hidden_ND.device)
        return *all_clusters.best_of_joint(hidden_ND, log_cluster_NC, words, k), all_N
    first = min(clusters, max(_FIRST_CLUSTERS, -(-k // width)))
    few = len(hidden_ND) <= _FEW_ROWS and hidden_ND.device.type == "cpu"
    if few and len(hidden_ND) == 1:  # which looks by itself whether it is flat
        return _best_of_rows(hidden_ND, log_cluster_NC, words, k, first)
    # With more than `first` words asked for, one cluster at least gives two, so the k-th is at most half the likeliest
    # cluster: where many clusters reach that half, the first few cannot settle the row.
    half_N1 = log_cluster_NC.amax(dim=1, keepdim=True) - math.log(2.0)
    flat_N = ((log_cluster_NC >= half_N1).sum(dim=1) > _WHOLE_SHARE * clusters) & (k > first)
    if few and not flat_N.any():
        return _best_of_rows(hidden_ND, log_cluster_NC, words, k, first)
    if flat_N.float().mean() < _FLAT_ROWS:
        return _best_by_bounds(hidden_ND, log_cluster_NC, words, k, first)
    values_NK, ids_NK = (
        hidden_ND.new_empty(len(flat_N), k, dtype=log_cluster_NC.dtype),
        flat_N.new_empty(len(flat_N), k, dtype=torch.int64),
    )
    share_N = torch.ones(len(flat_N), device=hidden_ND.device)
    rows_R = flat_N.nonzero()[:, 0]
    values_NK[rows_R], ids_NK[rows_R] = all_clusters.best_of_all(hidden_ND[rows_R], log_cluster_NC[rows_R], words, k)
    rows_R = (~flat_N).nonzero()[:, 0]
    if len(rows_R):
        found = _best_by_bounds(hidden_ND[rows_R], log_cluster_NC[rows_R], words, k, first)
        values_NK[rows_R], ids_NK[rows_R], share_N[rows_R] = found
    return values_NK, ids_NK, share_N


def _at_once(rows: int, slots: int, on_gpu: bool) -> bool:
    """Whether so few slots are best scored at once, whatever their bounds say."""
    return rows * slots <= _AT_ONCE_ON_GPU if on_gpu else slots <= _FEW_SLOTS and rows * slots <= _AT_ONCE_ON_CPU


def _best_of_rows(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, first: int) -> Found:
    """As `search`, one row after the other, but together those that want all clusters."""
    alone = len(hidden_ND) == 1
    rows = zip(hidden_ND, log_cluster_NC, strict=True)
    found = [_best_of_row(*row, words, k, first, alone) for row in rows]
    flat = [row for row, each in enumerate(found) if each is None]
    if flat:
        values_RK, ids_RK = all_clusters.best_of_all(hidden_ND[flat], log_cluster_NC[flat], words, k)
        for row, values_K, ids_K in zip(flat, values_RK, ids_RK, strict=True):
            found[row] = values_K[None], ids_K[None], 1.0
    values, ids, shares = zip(*(each for each in found if each is not None), strict=True)
    return torch.cat(values), torch.cat(ids), torch.tensor(shares)


def _best_of_row(
    hidden_D: Tensor, log_cluster_C: Tensor, words: WordsByCluster, k: int, first: int, alone: bool
) -> tuple[Tensor, Tensor, float] | None:
    """Values and ids (1, K) of one row, its clusters expanded by falling probability; and their share. None where it
    wants all of them and is not alone."""
    bound_C, order_C = log_cluster_C.sort(descending=True)
    bounds, clusters = bound_C.tolist(), len(bound_C)
    joint_MS = log_cluster_C.new_empty(0, words.rows.slots)
    # As for many rows: where the first few cannot settle the row, all are wanted at once.
    reaching = bisect_right(bounds, math.log(2.0) - bounds[0], key=operator.neg)
    wanted = clusters if k > first and reaching > _WHOLE_SHARE * clusters else first
    while True:
        done = len(joint_MS)
        if wanted - done > _WHOLE_SHARE * clusters:
            if not alone:
                return None
            joint_MS = words.joint_of_all(hidden_D[None], log_cluster_C[None])[0]
            order_C, wanted = torch.arange(clusters), clusters
        else:
            more_MS = words.joint_of_row(hidden_D, bound_C[done:wanted], order_C[done:wanted])
            joint_MS = torch.cat([joint_MS, more_MS]) if done else more_MS
        values_M, column_M = _best_columns(joint_MS, min(k + 1, joint_MS.numel()))
        values = values_M.tolist()
        # At equality a word of lower id may still come: only a bound strictly below settles a row.
        if wanted == clusters or bounds[wanted] < values[k - 1]:
            break
        wanted = min(bisect_right(bounds, -values[k - 1], key=operator.neg), _NEXT * wanted)
    width = joint_MS.shape[1]

    def ids_of(column: Tensor) -> Tensor:
        return words.word_CS[order_C[column // width], column % width]

    if len(set(values)) == len(values):
        return values_M[None, :k], ids_of(column_M[:k])[None], wanted / clusters
    values_1K, ids_1K = best(joint_MS.view(1, -1), k, lambda rows_R, column_RM: ids_of(column_RM))
    return values_1K, ids_1K, wanted / clusters


def _best_columns(joint_MS: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest of all, and where they are in `joint_MS.flatten()`; of equals any."""
    clusters, width = joint_MS.shape
    if clusters < _MANY * count:
        return torch.topk(joint_MS.flatten(), count)
    chosen_M = torch.topk(joint_MS.amax(dim=1), count).indices  # so many words are in no more clusters
    values_M, column_M = torch.topk(joint_MS[chosen_M].flatten(), count)
    return values_M, chosen_M[column_M // width] * width + column_M % width


def likeliest_of_clusters(
    hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, width: int
) -> tuple[Tensor, Tensor]:
    """Values and ids (N, K) of the k likeliest words of each row's `width` likeliest clusters."""
    if hidden_ND.is_cuda and _at_once(len(hidden_ND), words.word_CS.numel(), on_gpu=True):
        return all_clusters.best_of_joint(hidden_ND, followed(log_cluster_NC, width), words, k)
    chosen_NW = torch.topk(log_cluster_NC, min(width, log_cluster_NC.shape[1]), dim=1).indices
    return _best_of_expanded(hidden_ND, log_cluster_NC, words, chosen_NW, k)


def followed(log_group_NC: Tensor, width: int) -> Tensor:
    """`log_group_NC` with -inf for all but the `width` likeliest groups of each row."""
    values_NW, chosen_NW = torch.topk(log_group_NC, min(width, log_group_NC.shape[1]), dim=1)
    return torch.full_like(log_group_NC, -torch.inf).scatter_(1, chosen_NW, values_NW)


def _best_of_expanded(
    hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, chosen_NM: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    (rows, expanded), width = chosen_NM.shape, words.word_CS.shape[1]
    every_P = torch.arange(rows * expanded, device=hidden_ND.device)
    batch = cluster_softmax.ByCluster.of(chosen_NM.flatten(), every_P, words.rows, words.form)
    sorted_PS = words.joint(hidden_ND, log_cluster_NC, batch.order_N // expanded, batch)
    place_P = torch.empty_like(every_P)
    place_P[batch.order_N] = every_P
    joint_NF = sorted_PS.index_select(0, place_P).view(rows, -1)

    def ids_of(rows_R: Tensor, column_RM: Tensor) -> Tensor:
        return words.word_CS[chosen_NM[rows_R].gather(1, column_RM // width), column_RM % width]

    return best(joint_NF, k, ids_of)


def _best_by_bounds(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, first: int) -> Found:
    rows, clusters = log_cluster_NC.shape
    falling_NM, chosen_NM = torch.topk(log_cluster_NC, min(first + 1, clusters), dim=1)
    chosen_NM = chosen_NM[:, :first]
    values_NK, ids_NK = _best_of_expanded(hidden_ND, log_cluster_NC, words, chosen_NM, k)
    share_N = torch.full((rows,), first / clusters, device=hidden_ND.device)
    if first == clusters:
        return values_NK, ids_NK, share_N

    open_R = (falling_NM[:, first] >= values_NK[:, -1]).nonzero()[:, 0]
    if len(open_R):
        hidden_RD, log_cluster_RC = hidden_ND[open_R], log_cluster_NC[open_R]
        needed_RC = log_cluster_RC >= values_NK[open_R, -1:]
        share_R = needed_RC.float().mean(dim=1)
        following = _NEXT * first
        if following < _OPEN_SHARE * clusters and share_R.mean() * clusters > following:
            *found, share_N[open_R] = _best_by_bounds(hidden_RD, log_cluster_RC, words, k, following)
        elif share_R.sum() > _OPEN_SHARE * rows:
            found, share_N[open_R] = all_clusters.best_of_all(hidden_RD, log_cluster_RC, words, k), 1.0
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
    cluster_P, row_P = needed_RC.T.nonzero(as_tuple=True)  # sorted by cluster
    batch = cluster_softmax.ByCluster.of(cluster_P, torch.zeros_like(cluster_P), words.rows, words.form)
    joint_PS = words.joint(hidden_RD, log_cluster_RC, row_P, batch)
    pair_Q, slot_Q = (joint_PS >= values_RK[row_P, -1:]).nonzero(as_tuple=True)
    every_R = torch.arange(rows, device=row_P.device).repeat_interleave(k)
    return best_of_pairs(
        torch.cat([every_R, row_P[pair_Q]]),
        torch.cat([values_RK.flatten(), joint_PS[pair_Q, slot_Q]]),
        torch.cat([ids_RK.flatten(), words.word_CS[cluster_P[pair_Q], slot_Q]]),
        rows,
        k,
    )
