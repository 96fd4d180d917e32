"""The k best of scored words, exact to the order of ties, which `torch.topk` leaves open."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vocabench.impls.on_torch.triton import availability

# How many words are looked for beyond the k best, so that ties can be settled among them; in half precision every row
# has some. Of float32 few have any, and on a CPU to look for more takes longer.
_SPARE, _SPARE_ON_GPU = (1, 22), (22,)


def exact_topk(scores_NV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and columns (N, K) of the k highest scores, ties by lower column."""
    return best_columns(scores_NV, None, k)


def best_columns(scores_NF: Tensor, ids_F: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids (N, K) of the k highest scores, ties by lower id: of columns that mean the same in each row.

    Args:
        scores_NF: (N, F).
        ids_F: Of the columns; None where they are the columns' own numbers.
        k: At most F.
    """
    if availability.runs_on(scores_NF):
        from vocabench.impls.on_torch.triton import topk_kernels  # imports Triton, which not every installation has

        if k <= topk_kernels.MOST:
            return topk_kernels.best_columns(scores_NF, ids_F, k)
    return best(scores_NF, k, lambda rows_R, column_RM: column_RM if ids_F is None else ids_F[column_RM])


def best(scores_NF: Tensor, k: int, ids_of: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Values and ids (N, K) of the k highest of F found words a row, ties by lower id.

    Args:
        scores_NF: (N, F).
        k: At most F.
        ids_of: From rows (R,) and columns (R, M) to the ids (R, M) found there.
    """
    return _best(scores_NF, k, ids_of, _SPARE_ON_GPU if scores_NF.is_cuda else _SPARE)


def _best(
    scores_NF: Tensor, k: int, ids_of: Callable[[Tensor, Tensor], Tensor], spare: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """`best`, with so many words looked for beyond the k best: where the last of them is below the k-th, all that equal
    the k-th are among them, and only these are put in order. Rows with so many equals that it is not are looked at
    again, with the next of `spare`, and at last whole."""
    rows, found = scores_NF.shape
    wide = min(k + spare[0], found) if spare else found
    values_NM, column_NM = torch.topk(scores_NF, wide, dim=1)
    ids_NM = ids_of(torch.arange(rows, device=scores_NF.device), column_NM)
    # On a GPU it takes as long to learn whether there are ties as to put them in order.
    if not scores_NF.is_cuda and not (values_NM[:, 1:] == values_NM[:, :-1]).any():
        return values_NM[:, :k], ids_NM[:, :k]
    ids_NM, by_id = ids_NM.sort(dim=1)
    values_NM, by_value = values_NM.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    ids_NM = ids_NM.gather(1, by_value)
    values_NK, ids_NK = values_NM[:, :k], ids_NM[:, :k]
    open_R = (values_NM[:, -1] == values_NM[:, k - 1]).nonzero()[:, 0] if wide < found else ()
    if len(open_R):
        again = _best(scores_NF[open_R], k, lambda at_R, column_RM: ids_of(open_R[at_R], column_RM), spare[1:])
        values_NK[open_R], ids_NK[open_R] = again
    return values_NK, ids_NK


def best_of_pairs(row_P: Tensor, values_P: Tensor, ids_P: Tensor, rows: int, k: int) -> tuple[Tensor, Tensor]:
    """`best` of found words that come as (row, word) pairs, any number a row but at least k."""
    order_P = torch.argsort(ids_P)  # each sort keeps the order of the one before among equals
    order_P = order_P[torch.argsort(values_P[order_P], descending=True, stable=True)]
    order_P = order_P[torch.argsort(row_P[order_P], stable=True)]
    begins_N = torch.searchsorted(row_P[order_P], torch.arange(rows, device=row_P.device))
    place_NK = order_P[begins_N[:, None] + torch.arange(k, device=row_P.device)]
    return values_P[place_NK], ids_P[place_NK]
