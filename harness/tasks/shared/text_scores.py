"""Reading of text by a language model, and its scores on held-out text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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


class TokenLosses(NamedTuple):
    """Negative log-likelihoods of the words of a text in nats, (B, T) each.

    Attributes:
        targets_BT: The words that are scored.
        parts: Their negative log-likelihoods, or for a two-level layer those of the cluster and of the word in it.
    """

    targets_BT: NDArray[np.int32]
    parts: tuple[NDArray[np.float64], ...]

    @property
    def nll_BT(self) -> NDArray[np.float64]:
        return np.sum(self.parts, axis=0)

    def perplexities(self) -> dict[str, float]:
        """Return the perplexity, and for a two-level layer also its two factors (equations 5 and 6)."""
        found = {"perplexity": float(np.exp(self.nll_BT.mean()))}
        if len(self.parts) > 1:
            of_cluster, in_cluster = (float(np.exp(part_BT.mean())) for part_BT in self.parts)
            found |= {"cluster_perplexity": of_cluster, "in_cluster_perplexity": in_cluster}
        return found


def losses(model: LanguageModel, ids_T: NDArray, steps: int) -> TokenLosses:
    """Score a text, which is read in B rows. The first word of a row is read and not scored."""
    rows_BT = rows(ids_T, EVAL_ROWS, 1)
    pieces = [
        [
            np.asarray(part_N, np.float64).reshape(targets_BT.shape)
            for part_N in model.nll_parts(inputs_BT, targets_BT, carry=not first)
        ]
        for first, (inputs_BT, targets_BT) in batches(rows_BT, steps, whole=False)
    ]
    parts = tuple(np.concatenate(part, axis=1) for part in zip(*pieces, strict=True))
    return TokenLosses(np.asarray(rows_BT[:, 1:], np.int32), parts)
