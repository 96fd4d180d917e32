"""The k best of scored words, exact to the order of ties, which `torch.topk` leaves open."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def exact_topk(scores_NV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and columns (N, K) of the k highest scores, ties by lower column."""
    return best(scores_NV, k, lambda rows_R, column_RM: column_RM)


def best(scores_NF: Tensor, k: int, ids_of: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Values and ids (N, K) of the k highest of F found words a row, ties by lower id.

    Only where equal scores meet among the first k + 1 can `torch.topk` have left out or misplaced one: those rows are
    sorted, and only for them are the ids of all F needed.

    Args:
        scores_NF: (N, F).
        k: At most F.
        ids_of: From rows (R,) and columns (R, M) to the ids (R, M) found there.
    """
    rows, found = scores_NF.shape
    wide = min(k + 1, found)
    values_NK, column_NK = torch.topk(scores_NF, wide, dim=1)
    ids_NK = ids_of(torch.arange(rows, device=scores_NF.device), column_NK)
    tied_R = (values_NK[:, 1:] == values_NK[:, :-1]).any(dim=1).nonzero()[:, 0]
    if len(tied_R):
        every_RF = torch.arange(found, device=scores_NF.device).expand(len(tied_R), -1)
        ids_RF, by_id = ids_of(tied_R, every_RF).sort(dim=1)
        values_RF, by_value = scores_NF[tied_R].gather(1, by_id).sort(dim=1, descending=True, stable=True)
        values_NK[tied_R], ids_NK[tied_R] = values_RF[:, :wide], ids_RF.gather(1, by_value)[:, :wide]
    return values_NK[:, :k], ids_NK[:, :k]


def best_of_pairs(row_P: Tensor, values_P: Tensor, ids_P: Tensor, rows: int, k: int) -> tuple[Tensor, Tensor]:
    """`best` of found words that come as (row, word) pairs, any number a row but at least k."""
    order_P = torch.argsort(ids_P)  # each sort keeps the order of the one before among equals
    order_P = order_P[torch.argsort(values_P[order_P], descending=True, stable=True)]
    order_P = order_P[torch.argsort(row_P[order_P], stable=True)]
    begins_N = torch.searchsorted(row_P[order_P], torch.arange(rows, device=row_P.device))
    place_NK = order_P[begins_N[:, None] + torch.arange(k, device=row_P.device)]
    return values_P[place_NK], ids_P[place_NK]
