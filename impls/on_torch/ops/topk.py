"""The k best of scored words, including the order of ties, which `torch.topk` leaves undefined."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vocabench.impls.on_torch.tracing import is_tracing
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
    if is_tracing():
        return _traced_best_columns(scores_NF, ids_F, k)
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
    if is_tracing():
        rows = torch.arange(scores_NF.shape[0], device=scores_NF.device)
        columns_NF = torch.arange(scores_NF.shape[1], device=scores_NF.device).expand(scores_NF.shape)
        return _sorted_by_both(scores_NF, ids_of(rows, columns_NF), k)
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
    values_NM, ids_NM = _sorted_by_both(values_NM, ids_NM, wide)
    values_NK, ids_NK = values_NM[:, :k], ids_NM[:, :k]
    open_R = (values_NM[:, -1] == values_NM[:, k - 1]).nonzero()[:, 0] if wide < columns else ()
    if len(open_R):
        again = _best(scores_NF[open_R], k, lambda at_R, column_RM: ids_of(open_R[at_R], column_RM), spare[1:])
        values_NK[open_R], ids_NK[open_R] = again
    return values_NK, ids_NK


def _sorted_by_both(values_NM: Tensor, ids_NM: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the first k values and ids in order of falling values and, among equals, of rising ids."""
    ids_NM, by_id = ids_NM.sort(dim=1)
    values_NM, by_value = values_NM.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    return values_NM[:, :k], ids_NM.gather(1, by_value)[:, :k]


def _traced_best_columns(scores_NF: Tensor, ids_F: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return the same as `best_columns`, without sizes or branches that depend on values."""
    if ids_F is not None:
        ids_F, by_id_F = ids_F.sort()
        scores_NF = scores_NF[:, by_id_F]
    last_N1 = scores_NF.topk(k, dim=1).values[:, -1:]
    above_NF, equal_NF = scores_NF > last_N1, scores_NF == last_N1
    # Of the words that tie with the k-th, those of the lowest ids fill the places that higher scores leave.
    left_N1 = k - above_NF.sum(dim=1, keepdim=True)
    chosen_NF = above_NF | (equal_NF & (equal_NF.cumsum(dim=1) <= left_N1))
    column_NK = chosen_NF.to(scores_NF.dtype).topk(k, dim=1).indices
    ids_NK = column_NK if ids_F is None else ids_F[column_NK]
    return _sorted_by_both(scores_NF.gather(1, column_NK), ids_NK, k)


def best_of_pairs(row_P: Tensor, values_P: Tensor, ids_P: Tensor, rows: int, k: int) -> tuple[Tensor, Tensor]:
    """Return the same as `best` for words given as (row, word) pairs, with at least k for each row."""
    order_P = torch.argsort(ids_P)  # stable sorts keep the previous order among equals
    order_P = order_P[torch.argsort(values_P[order_P], descending=True, stable=True)]
    order_P = order_P[torch.argsort(row_P[order_P], stable=True)]
    begins_N = torch.searchsorted(row_P[order_P], torch.arange(rows, device=row_P.device))
    place_NK = order_P[begins_N[:, None] + torch.arange(k, device=row_P.device)]
    return values_P[place_NK], ids_P[place_NK]
