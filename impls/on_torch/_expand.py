"""Exact top-k of a two-level layer without the whole vocabulary.

No word of a cluster is likelier than the cluster, so clusters are expanded by falling P(c): the first few of each row
in one batch, then those whose P(c) reaches the k-th best word found, which are all that can still matter. Rows for
which these are most of the clusters, as of a flat distribution, are scored whole, by one product a cluster
or one for all, and the k best words are looked for in the k clusters of the best bests.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from dataclasses import dataclass

import torch
from torch import Tensor

from impls.on_torch import _clusters, _products, _triton
from impls.on_torch._best import best, best_of_pairs
from impls.on_torch._layer import at_least_float32

_FIRST_CLUSTERS = 6  # expanded before the certificate is looked at
_FEW_ROWS = 4  # rows up to which one after the other, a product for each of its clusters, is faster on a CPU
_FEW_TOGETHER = 3  # rows up to which a batched product of the clusters' words with them is faster on a CPU
_LARGE = 2**17  # numbers of a cluster's slots: of few rows the empty ones take longer to read than a call takes
_LARGE_EVEN = 2**16  # the same where all clusters are one batched product of vectors with words
_EVEN = 1.25  # slots up to the largest cluster's size, over words: above it clusters are not of nearly one size
_FEW_VECTORS = 12  # up to which the order of their products with words, `_products.words_first`, decides
_FEW_EVEN = 64  # the same of clusters of nearly one size
# Of all rows: so few are made by one product and not by one for each cluster, where words go first in products of few
# vectors and where vectors do.
_FEW_SCORES = {True: 2**18, False: 2**21}
_WHOLE_SHARE = 0.15  # of a row's clusters: where the first few say that more are wanted, it is scored whole at once
_FLAT_ROWS = 0.25  # of all rows: fewer of them are scored with the others, who want most of the clusters between them
_OPEN_SHARE = 0.4  # of all (row, cluster) pairs: above it one product for all is cheaper than one for each pair
# Numbers of all rows' words: up to so many, a GPU scores them all in the time that it takes to launch anything finer.
_AT_ONCE_ON_GPU = 2**26

Found = tuple[Tensor, Tensor, Tensor]  # values and ids (N, K), and (N,) the share of clusters expanded


@dataclass(frozen=True)
class WordsByCluster:
    """The lower level of a two-level layer.

    Attributes:
        slab_CSD: Word vectors by cluster and slot.
        added_CS: What a word's score gets on top, its bias or 0; -inf in an empty slot.
        word_CS: The word in each slot.
        size_C: Words of each cluster, which are in its first slots.
        form: Of products of pairs with the slab, as in `_clusters.ByCluster`.
    """

    slab_CSD: Tensor
    added_CS: Tensor
    word_CS: Tensor
    size_C: Tensor
    form: str

    def joint(self, hidden_RD: Tensor, log_cluster_RC: Tensor, row_P: Tensor, batch: _clusters.ByCluster) -> Tensor:
        """(P, S) log P(c, w | h) of the words of (row, cluster) pairs, sorted by cluster; -inf in an empty slot."""
        scores_PS = at_least_float32(_clusters.scores(hidden_RD[row_P], self.slab_CSD, batch))
        scores_PS += self.added_CS[batch.cluster_N]
        return _joint(scores_PS, log_cluster_RC[row_P, batch.cluster_N])

    def joint_of_row(self, hidden_D: Tensor, log_cluster_M: Tensor, cluster_M: Tensor) -> Tensor:
        """(M, S) log P(c, w | h) of the words of some clusters of one row; -inf in an empty slot."""
        columns_DX = _products.columns_of(hidden_D)
        scores_MSX = hidden_D.new_zeros(len(cluster_M), self.slab_CSD.shape[1], columns_DX.shape[1])
        sizes = self.size_C[cluster_M].tolist()
        for scores_SX, cluster, size in zip(scores_MSX.unbind(), cluster_M.tolist(), sizes, strict=True):
            torch.mm(self.slab_CSD[cluster].narrow(0, 0, size), columns_DX, out=scores_SX.narrow(0, 0, size))
        return _joint(at_least_float32(scores_MSX[:, :, 0]) + self.added_CS[cluster_M], log_cluster_M)

    def joint_of_all(self, hidden_RD: Tensor, log_cluster_RC: Tensor) -> Tensor:
        """(R, C, S) log P(c, w | h) of all words; -inf in an empty slot."""
        if hidden_RD.is_cuda and _triton.known(hidden_RD.shape[1], hidden_RD.dtype):
            from impls.on_torch import _cluster_kernels  # imports Triton, which not every installation has

            scores_RF = hidden_RD @ self.slab_CSD.flatten(0, 1).T
            scores_RCS = scores_RF.view(len(hidden_RD), *self.added_CS.shape)
            return _cluster_kernels.joint(scores_RCS, self.added_CS, log_cluster_RC)
        return _joint(self.scores_of_all(hidden_RD), log_cluster_RC)

    def scores_of_all(self, hidden_RD: Tensor) -> Tensor:
        """(R, C, S) scores of all words, -inf in an empty slot; without the last slots where these hold no word."""
        rows, clusters = len(hidden_RD), len(self.slab_CSD)
        on_cpu = hidden_RD.device.type == "cpu" and hidden_RD.dtype == torch.float32
        numbers = self.slab_CSD[0].numel()
        if on_cpu and rows <= _FEW_EVEN and numbers >= _LARGE_EVEN and not torch.is_grad_enabled():
            sizes = self.size_C.tolist()
            even = clusters * max(sizes) <= _EVEN * sum(sizes)
            if even and not _products.words_first():
                return self._scores_of_even(hidden_RD, max(sizes))
            if numbers >= _LARGE and rows <= _FEW_VECTORS:
                return self._scores_without_empty(hidden_RD, sizes).view(rows, *self.added_CS.shape) + self.added_CS
        # In half precision the one product is the faster.
        if on_cpu and rows <= _FEW_TOGETHER and _products.words_first():
            scores_CSR = torch.bmm(self.slab_CSD, hidden_RD.repeat(clusters, 1, 1).transpose(1, 2))
            return scores_CSR.permute(2, 0, 1) + self.added_CS
        scores_RF = at_least_float32(hidden_RD @ self.slab_CSD.flatten(0, 1).T)
        scores_RF += self.added_CS.flatten()
        return scores_RF.view(rows, *self.added_CS.shape)

    def _scores_of_even(self, hidden_RD: Tensor, largest: int) -> Tensor:
        """(R, C, S) scores of all words, by one batched product that reads no slots beyond the largest cluster's."""
        reached_CSD, hidden_CRD = self.slab_CSD[:, :largest], hidden_RD.expand(len(self.slab_CSD), -1, -1)
        if len(hidden_RD) <= _FEW_VECTORS:
            scores_CRS = torch.bmm(hidden_CRD, reached_CSD.transpose(1, 2))
        else:
            scores_CRS = torch.bmm(reached_CSD, hidden_CRD.transpose(1, 2)).transpose(1, 2)
        scores_RCS = hidden_RD.new_empty(len(hidden_RD), *reached_CSD.shape[:2])
        return torch.add(scores_CRS.transpose(0, 1), self.added_CS[:, :largest], out=scores_RCS)

    def _scores_without_empty(self, hidden_RD: Tensor, sizes: list[int]) -> Tensor:
        """(R, C S) scores of all words, by a product for each cluster, which reads no empty slot; 0 there."""
        (clusters, width), rows = self.word_CS.shape, len(hidden_RD)
        bounds = [end for size in sizes for end in (size, width - size)]
        pieces = self.slab_CSD.flatten(0, 1).split(bounds)[::2]
        if _products.words_first():
            columns_DX = hidden_RD.T if rows > 1 else _products.columns_of(hidden_RD[0])
            scores_FX = hidden_RD.new_zeros(clusters * width, columns_DX.shape[1])
            for words_SD, scores_SX in zip(pieces, scores_FX.split(bounds)[::2], strict=True):
                torch.mm(words_SD, columns_DX, out=scores_SX)
            return scores_FX.T[:rows].contiguous()
        scores_RF = hidden_RD.new_zeros(rows, clusters * width)
        for words_SD, scores_RS in zip(pieces, scores_RF.split(bounds, dim=1)[::2], strict=True):
            torch.mm(hidden_RD, words_SD.T, out=scores_RS)
        return scores_RF


def _joint(scores: Tensor, log_cluster: Tensor) -> Tensor:
    """log P(c, w | h) from the scores of a cluster's words, along the last axis, and log P(c | h)."""
    return torch.log_softmax(scores, dim=-1).add_(log_cluster[..., None])


def search(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int) -> Found:
    """Values and ids (N, K) of the k likeliest words, and (N,) the share of clusters expanded.

    Args:
        hidden_ND: What the word vectors are multiplied with, in their dtype.
        log_cluster_NC: log P(c | h).
        words: The words of each cluster, none of which is empty.
        k: From 1 to V.
    """
    clusters, width = words.word_CS.shape
    first = min(clusters, max(_FIRST_CLUSTERS, -(-k // width)))
    few = len(hidden_ND) <= _FEW_ROWS and hidden_ND.device.type == "cpu"
    if few and len(hidden_ND) == 1:  # which looks by itself whether it is flat
        return _best_of_rows(hidden_ND, log_cluster_NC, words, k, first)
    if hidden_ND.is_cuda and len(hidden_ND) * clusters * width <= _AT_ONCE_ON_GPU:
        return *_best_of_joint(hidden_ND, log_cluster_NC, words, k), torch.ones(len(hidden_ND), device=hidden_ND.device)
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
    values_NK[rows_R], ids_NK[rows_R] = _best_of_all(hidden_ND[rows_R], log_cluster_NC[rows_R], words, k)
    rows_R = (~flat_N).nonzero()[:, 0]
    if len(rows_R):
        found = _best_by_bounds(hidden_ND[rows_R], log_cluster_NC[rows_R], words, k, first)
        values_NK[rows_R], ids_NK[rows_R], share_N[rows_R] = found
    return values_NK, ids_NK, share_N


def _best_of_rows(hidden_ND: Tensor, log_cluster_NC: Tensor, words: WordsByCluster, k: int, first: int) -> Found:
    """As `search`, one row after the other, but together those that want all clusters."""
    alone = len(hidden_ND) == 1
    rows = zip(hidden_ND, log_cluster_NC, strict=True)
    found = [_best_of_row(*row, words, k, first, alone) for row in rows]
    flat = [row for row, each in enumerate(found) if each is None]
    if flat:
        values_RK, ids_RK = _best_of_all(hidden_ND[flat], log_cluster_NC[flat], words, k)
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
    joint_MS = words.added_CS[:0]
    # As for many rows: where the first few cannot settle the row, all are wanted at once.
    reaching = bisect_right(bounds, math.log(2.0) - bounds[0], key=operator.neg)
    wanted = clusters if k > first and reaching > _WHOLE_SHARE * clusters else first
    while True:
        done = len(joint_MS)
        if wanted - done > _WHOLE_SHARE * clusters:
            if not alone:
                return None
            joint_MS = _joint(words.scores_of_all(hidden_D[None])[0], log_cluster_C)
            word_MS = words.word_CS
            wanted = clusters
        else:
            more_MS = words.joint_of_row(hidden_D, bound_C[done:wanted], order_C[done:wanted])
            joint_MS = torch.cat([joint_MS, more_MS]) if done else more_MS
            word_MS = words.word_CS[order_C[:wanted]]
        values_M, column_M = torch.topk(joint_MS.flatten(), min(k + 1, joint_MS.numel()))
        values = values_M.tolist()
        # At equality a word of lower id may still come: only a bound strictly below settles a row.
        if wanted == clusters or bounds[wanted] < values[k - 1]:
            break
        wanted = bisect_right(bounds, -values[k - 1], key=operator.neg)
    width = joint_MS.shape[1]

    def ids_of(column: Tensor) -> Tensor:
        return word_MS[column // width, column % width]

    if len(set(values)) == len(values):
        return values_M[None, :k], ids_of(column_M[:k])[None], wanted / clusters
    values_1K, ids_1K = best(joint_MS.view(1, -1), k, lambda rows_R, column_RM: ids_of(column_RM))
    return values_1K, ids_1K, wanted / clusters


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
    every_P = torch.arange(rows * expanded, device=hidden_ND.device)
    batch = _clusters.ByCluster.of(chosen_NM.flatten(), every_P, words.size_C, words.form)
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
        if share_R.sum() > _OPEN_SHARE * rows:
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
    cluster_P, row_P = needed_RC.T.nonzero(as_tuple=True)  # sorted by cluster
    batch = _clusters.ByCluster.of(cluster_P, torch.zeros_like(cluster_P), words.size_C, words.form)
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


def _best_of_all(hidden_RD: Tensor, log_cluster_RC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor]:
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


def _best_of_joint(hidden_RD: Tensor, log_cluster_RC: Tensor, words: WordsByCluster, k: int) -> tuple[Tensor, Tensor]:
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
    vectors_first = len(hidden_RD) <= _FEW_VECTORS and not _products.words_first()
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
