"""Reading of text by a language model, and its scores on held-out text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.models.language_model import LanguageModel

EVAL_ROWS = 16  # rows of held-out text that are read in parallel

Batch = tuple[NDArray[np.int32], NDArray[np.int32]]


def rows(ids_T: NDArray, batch: int, steps: int) -> NDArray:
    """Cut the text into `batch` equal rows that are read in parallel, (B, T)."""
    if len(ids_T) < batch * (steps + 1):
        raise BadInput(
            f"a split of {len(ids_T):,} tokens is too short for {batch} rows of {steps} steps: allowed: from "
            f"{batch * (steps + 1):,} tokens, or a smaller batch"
        )
    width = len(ids_T) // batch
    return ids_T[: batch * width].reshape(batch, width)


def batches(rows_BT: NDArray, steps: int, *, whole: bool) -> Iterator[tuple[bool, Batch]]:
    """Yield (is this the first?, (inputs, targets)) along the rows; `whole` leaves out a shorter piece at the end."""
    last = rows_BT.shape[1] - 1
    for start in range(0, last, steps):
        stop = min(start + steps, last)
        if whole and stop - start < steps:
            return
        inputs_BT = np.ascontiguousarray(rows_BT[:, start:stop], dtype=np.int32)
        targets_BT = np.ascontiguousarray(rows_BT[:, start + 1 : stop + 1], dtype=np.int32)
        yield start == 0, (inputs_BT, targets_BT)


def scores(model: LanguageModel, ids_T: NDArray, steps: int) -> dict[str, float]:
    """Return the perplexity, and for a two-level layer also its two factors (equations 5 and 6)."""
    sums: dict[str, float] = {}
    tokens = 0
    for first, (inputs_BT, targets_BT) in batches(rows(ids_T, EVAL_ROWS, 1), steps, whole=False):
        for name, value in model.evaluate(inputs_BT, targets_BT, carry=not first).items():
            sums[name] = sums.get(name, 0.0) + value
        tokens += targets_BT.size
    found = {"perplexity": float(np.exp(sums["nll"] / tokens))}
    if "cluster_nll" in sums:
        found["cluster_perplexity"] = float(np.exp(sums["cluster_nll"] / tokens))
        found["in_cluster_perplexity"] = float(np.exp((sums["nll"] - sums["cluster_nll"]) / tokens))
    return found


def log_probs(model: LanguageModel, ids_T: NDArray, steps: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the words that `scores` scores and their natural log-probabilities, (B, T) each.

    The text is read in B rows. The first word of a row is read and not scored.
    """
    rows_BT = rows(ids_T, EVAL_ROWS, 1)
    pieces = []
    for first, (inputs_BT, targets_BT) in batches(rows_BT, steps, whole=False):
        parts = model.nll_parts(inputs_BT, targets_BT, carry=not first)
        pieces.append(-np.sum(parts, axis=0, dtype=np.float64).reshape(targets_BT.shape))
    return np.asarray(rows_BT[:, 1:], np.int32), np.concatenate(pieces, axis=1)
