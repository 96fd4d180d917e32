"""The k best of scored words, exact to the order of ties, which `torch.topk` leaves open."""

from __future__ import annotations

import torch
from torch import Tensor


def exact_topk(scores_NV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and columns (N, K) of the k highest scores, ties by lower column."""
    columns_NV = torch.arange(scores_NV.shape[1], device=scores_NV.device).expand_as(scores_NV)
    return best(scores_NV, columns_NV, k)


def best(scores_NF: Tensor, ids_NF: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids (N, K) of the k highest of F found words a row, ties by lower id.

    Only where equal scores meet among the first k + 1 can `torch.topk` have left out or misplaced one: those rows are
    sorted.
    """
    wide = min(k + 1, scores_NF.shape[1])
    values_NK, place_NK = torch.topk(scores_NF, wide, dim=1)
    ids_NK = ids_NF.gather(1, place_NK)
    rows = (values_NK[:, 1:] == values_NK[:, :-1]).any(dim=1).nonzero()[:, 0]
    if len(rows):
        ids_RF, by_id = ids_NF[rows].sort(dim=1)
        values_RF, by_value = scores_NF[rows].gather(1, by_id).sort(dim=1, descending=True, stable=True)
        values_NK[rows], ids_NK[rows] = values_RF[:, :wide], ids_RF.gather(1, by_value)[:, :wide]
    return values_NK[:, :k], ids_NK[:, :k]


def best_of_pairs(row_P: Tensor, values_P: Tensor, ids_P: Tensor, rows: int, k: int) -> tuple[Tensor, Tensor]:
    """`best` of found words that come as (row, word) pairs, any number a row but at least k."""
    order_P = torch.argsort(ids_P)  # each sort keeps the order of the one before among equals
    order_P = order_P[torch.argsort(values_P[order_P], descending=True, stable=True)]
    order_P = order_P[torch.argsort(row_P[order_P], stable=True)]
    begins_N = torch.searchsorted(row_P[order_P], torch.arange(rows, device=row_P.device))
    place_NK = order_P[begins_N[:, None] + torch.arange(k, device=row_P.device)]
    return values_P[place_NK], ids_P[place_NK]
