"""The k best of scored words, including the order of ties, which `torch.topk` leaves undefined."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vocabench.impls.on_torch.triton import availability

# Words searched beyond the k best, so that ties can be settled among them. In half precision every row has ties. In
# float32 few rows do, and on a CPU a wider search takes longer.
_SPARE, _SPARE_ON_GPU = (1, 22), (22,)


def exact_topk(scores_NV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return values and columns (N, K) of the k highest scores, ties by lower column."""
    return best_columns(scores_NV, None, k)


def best_columns(scores_NF: Tensor, ids_F: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return values and ids (N, K) of the k highest scores, ties by lower id, if columns have the same id in all rows.

    Args:
        scores_NF: (N, F).
        ids_F: Ids of the columns; None if they are the column indices.
        k: At most F.
    """
    if availability.runs_on(scores_NF):
        from vocabench.impls.on_torch.triton import topk_kernels  # imports Triton, which may not be installed

        if k <= topk_kernels.MOST:
            return topk_kernels.best_columns(scores_NF, ids_F, k)
    return best(scores_NF, k, lambda rows_R, column_RM: column_RM if ids_F is None else ids_F[column_RM])


def best(scores_NF: Tensor, k: int, ids_of: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return values and ids (N, K) of the k highest of F scores in each row, ties by lower id.

    Args:
        scores_NF: (N, F).
        k: At most F.
        ids_of: Maps rows (R,) and columns (R, M) to the ids (R, M) of these words.
    """
    return _best(scores_NF, k, ids_of, _SPARE_ON_GPU if scores_NF.is_cuda else _SPARE)


def _best(
    scores_NF: Tensor, k: int, ids_of: Callable[[Tensor, Tensor], Tensor], spare: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return the same as `best`, with `spare[0]` words searched beyond the k best.

    If the last of them is below the k-th best, all words that tie with the k-th are among them and can be sorted. Rows
    with more ties are searched again with the next of `spare`, and finally as a whole.
    """
    rows, columns = scores_NF.shape
    wide = min(k + spare[0], columns) if spare else columns
    values_NM, column_NM = torch.topk(scores_NF, wide, dim=1)
    ids_NM = ids_of(torch.arange(rows, device=scores_NF.device), column_NM)
    # On a GPU, checking for ties takes as long as sorting them.
    if not scores_NF.is_cuda and not (values_NM[:, 1:] == values_NM[:, :-1]).any():
        return values_NM[:, :k], ids_NM[:, :k]
    ids_NM, by_id = ids_NM.sort(dim=1)
    values_NM, by_value = values_NM.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    ids_NM = ids_NM.gather(1, by_value)
    values_NK, ids_NK = values_NM[:, :k], ids_NM[:, :k]
    open_R = (values_NM[:, -1] == values_NM[:, k - 1]).nonzero()[:, 0] if wide < columns else ()
    if len(open_R):
        again = _best(scores_NF[open_R], k, lambda at_R, column_RM: ids_of(open_R[at_R], column_RM), spare[1:])
        values_NK[open_R], ids_NK[open_R] = again
    return values_NK, ids_NK


def best_of_pairs(row_P: Tensor, values_P: Tensor, ids_P: Tensor, rows: int, k: int) -> tuple[Tensor, Tensor]:
    """Return the same as `best` for words given as (row, word) pairs, with at least k for each row."""
    order_P = torch.argsort(ids_P)  # stable sorts keep the previous order among equals
    order_P = order_P[torch.argsort(values_P[order_P], descending=True, stable=True)]
    order_P = order_P[torch.argsort(row_P[order_P], stable=True)]
    begins_N = torch.searchsorted(row_P[order_P], torch.arange(rows, device=row_P.device))
    place_NK = order_P[begins_N[:, None] + torch.arange(k, device=row_P.device)]
    return values_P[place_NK], ids_P[place_NK]
