"""Exact top-k, beam and sample of a two-level layer, without scoring the whole vocabulary.

No word of a cluster is likelier than the cluster. Clusters are therefore expanded in order of falling P(c): the first
few of each row in one batch, and then those whose P(c) reaches the k-th best word so far, which are all that can still
matter. Rows for which these are most of the clusters, as for a near-uniform distribution, are scored whole: the k best
words are then in the k clusters with the highest best words.

`search` first plans how each row is searched and then does so.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor

from vocabench.impls.cpp import CPP
from vocabench.impls.on_torch.ops import cpp_kernels
from vocabench.impls.on_torch.ops.topk import best, best_columns, best_of_pairs
from vocabench.impls.on_torch.tensors import draw
from vocabench.impls.on_torch.tracing import is_tracing
from vocabench.impls.on_torch.triton import availability
from vocabench.impls.on_torch.two_level import cluster_softmax
from vocabench.impls.on_torch.two_level.words import InCluster, WordsByCluster

_FIRST_CLUSTERS = 6  # expanded before bounds are compared
_NEXT = 4  # times as many are expanded next where more than that are needed: the k-th best so far is far too low
_FEW_ROWS = 4  # rows up to which one row after another, with a product for each of its clusters, is faster on a CPU
_WHOLE_SHARE = 0.15  # of a row's clusters: if the first few show that more are needed, the row is scored whole
_FLAT_ROWS = 0.25  # of all rows: fewer flat rows are searched with the others, which need most clusters between them
_MANY = 4  # times as many clusters as words: then the clusters' highest words decide which clusters are searched
_OPEN_SHARE = 0.4  # of all (row, cluster) pairs: above it one product for all is cheaper than one for each pair
_AT_ONCE_ON_GPU = 2**28  # slots of all rows that a GPU scores in the time it takes to launch anything finer
# The same on a CPU, for layers with so many slots: finding out which of them matter takes longer than scoring them.
_AT_ONCE_ON_CPU, _FEW_SLOTS = 2**18, 2**13

Result = tuple[Tensor, Tensor, Tensor]  # values and ids (N, K), and the (N,) share of clusters expanded


class _Way(Enum):
    """The ways to search a batch of rows."""

    KERNEL = auto()  # by the C++ kernel
    AT_ONCE = auto()  # score and rank all words of all rows, whatever their bounds
    ROW_BY_ROW = auto()  # by bounds, one row after another
    TOGETHER = auto()  # score every cluster of flat rows, and search all other rows together by bounds


@dataclass(frozen=True)
class _Plan:
    """How a batch of rows is searched.

    Attributes:
        way: The way.
        first: Number of clusters of each row that are expanded before bounds are compared.
        flat_N: The flat rows, for which every cluster is scored; None where there are too few to be scored apart.
    """

    way: _Way
    first: int = 0
    flat_N: Tensor | None = None


def _planned(log_cluster_NC: Tensor, words: WordsByCluster, k: int) -> _Plan:
    (rows, clusters), slots = log_cluster_NC.shape, words.word_CS.shape[1]
    if words.form == CPP:
        return _Plan(_Way.KERNEL)
    if is_tracing() or _pays_at_once(rows, clusters * slots, on_gpu=log_cluster_NC.is_cuda):
        return _Plan(_Way.AT_ONCE)
    first = min(clusters, max(_FIRST_CLUSTERS, -(-k // slots)))
    few = rows <= _FEW_ROWS and log_cluster_NC.device.type == "cpu"
    if few and rows == 1:  # `_search_row` checks whether the row is flat
        return _Plan(_Way.ROW_BY_ROW, first)
    # If more than `first` words are requested, at least one cluster contributes two, so that the k-th is at most half
    # as likely as the likeliest cluster. Where many clusters reach that half, the first few cannot settle the row.
    half_N1 = log_cluster_NC.amax(dim=1, keepdim=True) - math.log(2.0)
    flat_N = ((log_cluster_NC >= half_N1).sum(dim=1) > _WHOLE_SHARE * clusters) & (k > first)
    if few and not flat_N.any():
        return _Plan(_Way.ROW_BY_ROW, first)
    return _Plan(_Way.TOGETHER, first, None if flat_N.float().mean() < _FLAT_ROWS else flat_N)


def _pays_at_once(rows: int, slots: int, *, on_gpu: bool) -> bool:
    """Return whether so few slots are best scored at once, whatever their bounds."""
    return rows * slots <= _AT_ONCE_ON_GPU if on_gpu else slots <= _FEW_SLOTS and rows * slots <= _AT_ONCE_ON_CPU


def search(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int) -> Result:
    """Return values and ids (N, K) of the k likeliest words, and the (N,) share of clusters expanded.

    Args:
        hidden_ND: Factors of the products with the word vectors, in their dtype.
        log_cluster_NC: log P(c | h).
        words: The words of each cluster; no cluster is empty.
        k: From 1 to V.
    """
    plan = _planned(log_cluster_NC, words, k)
    if plan.way == _Way.AT_ONCE:
        all_N = torch.ones(hidden_ND.size(0), device=hidden_ND.device)
        return *best_at_once(hidden_ND, log_cluster_NC, words, k), all_N
    if plan.way == _Way.ROW_BY_ROW:
        return _search_rows(hidden_ND, log_cluster_NC, words, k, plan.first)
    if plan.way == _Way.TOGETHER:
        return _search_together(hidden_ND, log_cluster_NC, words, k, plan)
    lower = words.vectors, words.bias, words.word_CS, words.rows
    return cpp_kernels.likeliest(hidden_ND, log_cluster_NC, *lower, k)


def beam(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, width: int) -> tuple[Tensor, Tensor]:
    """Return values and ids (N, K) of the k likeliest words of each row's `width` likeliest clusters."""
    if hidden_ND.is_cuda and _pays_at_once(hidden_ND.size(0), words.word_CS.numel(), on_gpu=True):
        return best_at_once(hidden_ND, followed(log_cluster_NC, width), words, k)
    chosen_NW = torch.topk(log_cluster_NC, min(width, log_cluster_NC.shape[1]), dim=1).indices
    return _best_of_expanded(hidden_ND, log_cluster_NC, words, chosen_NW, k)


def followed(log_group_NC: Tensor, width: int) -> Tensor:
    """Return `log_group_NC` with -inf for all but the `width` likeliest groups of each row."""
    values_NW, chosen_NW = torch.topk(log_group_NC, min(width, log_group_NC.shape[1]), dim=1)
    return torch.full_like(log_group_NC, -torch.inf).scatter_(1, chosen_NW, values_NW)


def sample(hidden_ND: Tensor, cluster_N: Tensor, words: WordsByCluster, uniforms_N: Tensor) -> Tensor:
    """Return (N,) words drawn from each row's cluster."""
    batch = cluster_softmax.ByCluster.of(cluster_N, torch.zeros_like(cluster_N), words.rows, words.form)
    scores_NS = cluster_softmax.scores(hidden_ND, batch.order_N, words.vectors, words.bias, batch)
    slot_N = draw(scores_NS.softmax(dim=1), uniforms_N[batch.order_N])
    word_N = torch.empty_like(cluster_N)
    word_N[batch.order_N] = words.word_CS[batch.cluster_N, slot_N]
    return word_N


def best_at_once(hidden_RD: Tensor, log_cluster_RC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor]:
    """Return values and ids (R, K), with all words scored and ranked at once."""
    if is_tracing() or not (words.rows.in_slab and _has_kernel(words, k)):
        joint_RCS = _joint(hidden_RD, log_cluster_RC, words)
        return best_columns(joint_RCS.flatten(1), words.word_CS[:, : joint_RCS.shape[2]].flatten(), k)
    from vocabench.impls.on_torch.triton import topk_kernels  # imports Triton, which may not be installed

    scores_RCS = (hidden_RD @ words.rows.flat(words.vectors).T).view(hidden_RD.size(0), *words.word_CS.shape)
    return topk_kernels.best_of_clusters(scores_RCS, words.offset_CS, log_cluster_RC, words.word_CS, k)


def _has_kernel(words: WordsByCluster, k: int) -> bool:
    """Return whether Triton's kernel ranks so many words."""
    if not availability.runs_on(words.vectors):
        return False
    from vocabench.impls.on_torch.triton import topk_kernels

    return k <= topk_kernels.MOST and topk_kernels.takes(words.word_CS)


@dataclass(frozen=True)
class _Pairs:
    """Some (row, cluster) pairs.

    Attributes:
        row_P: The row of each pair.
        batch: The pairs, sorted by cluster.
    """

    row_P: Tensor
    batch: cluster_softmax.ByCluster


def _joint(hidden_RD: Tensor, log_cluster_RC: Tensor, words: WordsByCluster, pairs: _Pairs | None = None) -> Tensor:
    """Return log P(c, w | h), -inf in empty slots: (R, C, S) for all words, or (P, S) for the words of some pairs."""
    if pairs is None:
        return _with_cluster(words.scores_of_all(hidden_RD), log_cluster_RC)
    scores_PS = cluster_softmax.scores(hidden_RD, pairs.row_P, words.vectors, words.bias, pairs.batch)
    return _with_cluster(scores_PS, log_cluster_RC[pairs.row_P, pairs.batch.cluster_N])


def _with_cluster(scores: Tensor, log_cluster: Tensor) -> Tensor:
    """Return log P(c, w | h) from the scores of each cluster's words, along the last axis, and log P(c | h)."""
    return torch.log_softmax(scores, dim=-1).add_(log_cluster[..., None])


def _search_rows(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, first: int) -> Result:
    """Search one row after another, and afterwards all rows together that need every cluster."""
    alone = hidden_ND.size(0) == 1
    rows = zip(hidden_ND, log_cluster_NC, strict=True)
    results = [_search_row(*row, words, k, first, alone) for row in rows]
    flat = [row for row, result in enumerate(results) if result is None]
    if flat:
        values_RK, ids_RK = _best_of_whole(hidden_ND[flat], log_cluster_NC[flat], words, k)
        for row, values_K, ids_K in zip(flat, values_RK, ids_RK, strict=True):
            results[row] = values_K[None], ids_K[None], 1.0
    values, ids, shares = zip(*(result for result in results if result is not None), strict=True)
    return torch.cat(values), torch.cat(ids), torch.tensor(shares)


def _search_row(
    hidden_D: Tensor, log_cluster_C: Tensor, words: WordsByCluster, k: int, first: int, alone: bool
) -> tuple[Tensor, Tensor, float] | None:
    """Return values and ids (1, K) of one row and its share of clusters expanded, in order of falling probability.

    None if the row needs every cluster and is not alone.
    """
    bound_C, order_C = log_cluster_C.sort(descending=True)
    bounds, clusters = bound_C.tolist(), len(bound_C)
    joint_MS = log_cluster_C.new_empty(0, words.rows.slots)
    # As for many rows: if the first few clusters cannot settle the row, all are expanded at once.
    reaching = bisect_right(bounds, math.log(2.0) - bounds[0], key=operator.neg)
    needed = clusters if k > first and reaching > _WHOLE_SHARE * clusters else first
    while True:
        done = len(joint_MS)
        if needed - done > _WHOLE_SHARE * clusters:
            if not alone:
                return None
            joint_MS = _joint(hidden_D[None], log_cluster_C[None], words)[0]
            order_C, needed = torch.arange(clusters), clusters
        else:
            scores_MS = words.scores_of_row(hidden_D, order_C[done:needed])
            more_MS = _with_cluster(scores_MS, bound_C[done:needed])
            joint_MS = torch.cat([joint_MS, more_MS]) if done else more_MS
        values_M, column_M = _highest(joint_MS, min(k + 1, joint_MS.numel()))
        values = values_M.tolist()
        # At equality a word of lower id may still come: only a bound strictly below settles a row.
        if needed == clusters or bounds[needed] < values[k - 1]:
            break
        needed = min(bisect_right(bounds, -values[k - 1], key=operator.neg), _NEXT * needed)
    width = joint_MS.shape[1]

    def ids_of(column: Tensor) -> Tensor:
        return words.word_CS[order_C[column // width], column % width]

    if len(set(values)) == len(values):
        return values_M[None, :k], ids_of(column_M[:k])[None], needed / clusters
    values_1K, ids_1K = best(joint_MS.view(1, -1), k, lambda rows_R, column_RM: ids_of(column_RM))
    return values_1K, ids_1K, needed / clusters


def _highest(joint_MS: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the highest values and their places in `joint_MS.flatten()`; ties in any order."""
    clusters, width = joint_MS.shape
    if clusters < _MANY * count:
        return torch.topk(joint_MS.flatten(), count)
    chosen_M = torch.topk(joint_MS.amax(dim=1), count).indices  # the words are in no more clusters than these
    values_M, column_M = torch.topk(joint_MS[chosen_M].flatten(), count)
    return values_M, chosen_M[column_M // width] * width + column_M % width


def _search_together(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, plan: _Plan) -> Result:
    """Score every cluster of the flat rows, and search the others by bounds."""
    rows, flat_N = hidden_ND.size(0), plan.flat_N
    values_NK = log_cluster_NC.new_empty(rows, k)
    ids_NK = torch.empty(rows, k, dtype=torch.int64, device=hidden_ND.device)
    share_N = torch.ones(rows, device=hidden_ND.device)
    bounded_R: Tensor | slice = slice(None)
    if flat_N is not None:
        whole_R, bounded_R = flat_N.nonzero()[:, 0], (~flat_N).nonzero()[:, 0]
        values_NK[whole_R], ids_NK[whole_R] = _best_of_whole(hidden_ND[whole_R], log_cluster_NC[whole_R], words, k)
        if not len(bounded_R):
            return values_NK, ids_NK, share_N
    result = _search_by_bounds(hidden_ND[bounded_R], log_cluster_NC[bounded_R], words, k, plan.first)
    if flat_N is None:
        return result
    values_NK[bounded_R], ids_NK[bounded_R], share_N[bounded_R] = result
    return values_NK, ids_NK, share_N


def _best_of_whole(hidden_RD: Tensor, log_cluster_RC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor]:
    """Return values and ids (R, K), with every cluster scored."""
    in_cluster, clusters = words.in_cluster(hidden_RD), log_cluster_RC.shape[1]
    # k words are in at most k clusters, those with the k highest best words. One more shows whether a tie was left out.
    wide = min(k + 1, clusters)
    bests_RM, chosen_RM = torch.topk(in_cluster.highest_RC + log_cluster_RC, wide, dim=1)
    all_R = torch.arange(len(hidden_RD), device=hidden_RD.device)
    values_RK, ids_RK = _best_of_chosen(in_cluster, all_R, log_cluster_RC, chosen_RM[:, :k], words, k)
    if wide > k:
        tied_T = (bests_RM[:, k] >= values_RK[:, -1]).nonzero()[:, 0]
        if len(tied_T):
            chosen_TC = torch.arange(clusters, device=tied_T.device).expand(len(tied_T), -1)
            result = _best_of_chosen(in_cluster, tied_T, log_cluster_RC[tied_T], chosen_TC, words, k)
            values_RK[tied_T], ids_RK[tied_T] = result
    return values_RK, ids_RK


def _best_of_chosen(
    in_cluster: InCluster, rows_R: Tensor, log_cluster_RC: Tensor, chosen_RM: Tensor, words: WordsByCluster, k: int
) -> tuple[Tensor, Tensor]:
    """Return values and ids (R, K) of the words of each row's chosen clusters."""
    slots = in_cluster.slots
    slot_S = torch.arange(slots, device=chosen_RM.device)
    start_RM = in_cluster.start_C[chosen_RM] + rows_R[:, None] * in_cluster.row_stride_C[chosen_RM]
    place_RMS = start_RM[:, :, None] + slot_S * in_cluster.slot_stride
    # The value read for an empty slot belongs to another word and is replaced by -inf.
    joint_RMS = in_cluster.values_F[place_RMS.clamp_(max=len(in_cluster.values_F) - 1)]
    joint_RMS += log_cluster_RC.gather(1, chosen_RM)[:, :, None]
    joint_RMS.masked_fill_(slot_S >= words.rows.size_C[chosen_RM][:, :, None], -torch.inf)

    def ids_of(rows_T: Tensor, column_TM: Tensor) -> Tensor:
        return words.word_CS[chosen_RM[rows_T].gather(1, column_TM // slots), column_TM % slots]

    return best(joint_RMS.flatten(1), k, ids_of)


def _search_by_bounds(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, first: int) -> Result:
    """Expand the `first` likeliest clusters of each row, and then those that can still matter."""
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
            *result, share_N[open_R] = _search_by_bounds(hidden_RD, log_cluster_RC, words, k, following)
        elif share_R.sum() > _OPEN_SHARE * rows:
            result, share_N[open_R] = _best_of_whole(hidden_RD, log_cluster_RC, words, k), 1.0
        else:
            needed_RC.scatter_(1, chosen_NM[open_R], False)
            so_far = values_NK[open_R], ids_NK[open_R]
            result = _best_with_needed(*so_far, hidden_RD, log_cluster_RC, needed_RC, words)
            share_N[open_R] = share_R.clamp(min=first / clusters)
        values_NK[open_R], ids_NK[open_R] = result
    return values_NK, ids_NK, share_N


def _best_of_expanded(
    hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, chosen_NM: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Return values and ids (N, K) of the words of each row's chosen clusters, which are scored."""
    (rows, expanded), width = chosen_NM.shape, words.word_CS.shape[1]
    all_P = torch.arange(rows * expanded, device=hidden_ND.device)
    batch = cluster_softmax.ByCluster.of(chosen_NM.flatten(), all_P, words.rows, words.form)
    sorted_PS = _joint(hidden_ND, log_cluster_NC, words, _Pairs(batch.order_N // expanded, batch))
    place_P = torch.empty_like(all_P)
    place_P[batch.order_N] = all_P
    joint_NF = sorted_PS.index_select(0, place_P).view(rows, -1)

    def ids_of(rows_R: Tensor, column_RM: Tensor) -> Tensor:
        return words.word_CS[chosen_NM[rows_R].gather(1, column_RM // width), column_RM % width]

    return best(joint_NF, k, ids_of)


def _best_with_needed(
    values_RK: Tensor, ids_RK: Tensor, hidden_RD: Tensor, log_cluster_RC: Tensor, needed_RC: Tensor,
    words: WordsByCluster,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the best so far together with the words of the needed clusters that reach the k-th best so far."""
    rows, k = values_RK.shape
    cluster_P, row_P = needed_RC.T.nonzero(as_tuple=True)  # sorted by cluster
    batch = cluster_softmax.ByCluster.of(cluster_P, torch.zeros_like(cluster_P), words.rows, words.form)
    joint_PS = _joint(hidden_RD, log_cluster_RC, words, _Pairs(row_P, batch))
    pair_Q, slot_Q = (joint_PS >= values_RK[row_P, -1:]).nonzero(as_tuple=True)
    row_RK = torch.arange(rows, device=row_P.device).repeat_interleave(k)
    return best_of_pairs(
        torch.cat([row_RK, row_P[pair_Q]]),
        torch.cat([values_RK.flatten(), joint_PS[pair_Q, slot_Q]]),
        torch.cat([ids_RK.flatten(), words.word_CS[cluster_P[pair_Q], slot_Q]]),
        rows,
        k,
    )
