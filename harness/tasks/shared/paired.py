"""Measurements of a layer interleaved with full softmax, which several tasks use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.measure.timing import DEFINITION, IN_FLIGHT_DEFINITION, Paired, Work, paired
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Ratio
from vocabench.impls.contract import Layer

BASELINE = "full_softmax"
K = 10  # number of words in decoding
_ALONE = 32  # hidden vectors that are decoded individually


def timed(
    cell: Cell, quantity: str, baseline: Sequence[Work], other: Sequence[Work], detail: dict[str, Any], calls: int = 1
) -> tuple[Paired, Measurement]:
    """Time both alternately, within the `rounds` and `budget` of the cell. Each sample is `calls` calls."""
    limits = {"rounds": cell.settings["rounds"], "budget_seconds": cell.settings["budget"]}
    result = paired(baseline, other, **limits, calls=calls)
    seconds, ratio = result.other.seconds, result.ratio
    return result, Measurement(
        quantity,
        seconds.value,
        samples=result.other.samples,
        low=seconds.low,
        high=seconds.high,
        ratio=Ratio(
            # Full softmax relative to itself is 1 by definition; the interval of the A/A comparison shows the noise.
            value=1.0 if cell.method == BASELINE else ratio.value,
            low=ratio.low,
            high=ratio.high,
            samples=result.ratios,
            baseline_samples=result.baseline.samples,
        ),
        detail=detail | {"turns": result.other.turns, "timing": DEFINITION if calls == 1 else IN_FLIGHT_DEFINITION},
    )


DECODING = ("topk_seconds", "beam_seconds", "sample_seconds")


def decoding(
    cell: Cell, layer: Layer, baseline: Layer, hidden_ND: NDArray, wanted: Sequence[str] = DECODING
) -> list[Measurement]:
    """Time finding and drawing words for `hidden_ND`, interleaved with full softmax.

    Measures the exact top-k of all rows and of single rows with the share of the layer that was scored, a beam of width
    k with its recall of the exact top-k, and one sampled word per row. The time of a single row is the mean over some
    of the rows, decoded one after the other: bounds help some rows more than others, and a row that is decoded
    repeatedly would find its clusters in a cache, which is not the case when decoding a text.

    Args:
        cell: The cell, with its `rounds` and `budget`.
        layer: The layer to measure.
        baseline: Full softmax of the same size.
        hidden_ND: Hidden vectors. The bounds depend on them: a trained model has peaked distributions, random vectors
            near-uniform ones.
        wanted: The quantities to measure, from `DECODING`.
    """
    k = min(K, layer.spec.vocab)
    found: list[Measurement] = []

    def time(quantity: str, work: str, batches: Sequence[NDArray], against: str) -> None:
        full = [baseline.prepare(against, rows_ND, k=k) for rows_ND in batches]
        own = [layer.prepare(work, rows_ND, k=k) for rows_ND in batches]
        detail = {"rows": len(batches[0]), "batches": len(batches)} | ({} if work == "sample" else {"k": k})
        found.append(timed(cell, quantity, full, own, detail)[1])
        found[-1].detail["formulation"] = layer.formulation()  # complete after the first call

    if "topk_seconds" in wanted:
        share_N = layer.expanded_share(hidden_ND, k)
        time("topk_seconds", "topk", [hidden_ND], "topk")
        alone_R = np.linspace(0, len(hidden_ND) - 1, min(_ALONE, len(hidden_ND)), dtype=np.int64)
        time("topk1_seconds", "topk", [hidden_ND[row : row + 1] for row in alone_R], "topk")
        found.append(Measurement("expanded_share", float(share_N.mean()), share_N.tolist()))
    if "beam_seconds" in wanted:
        time("beam_seconds", "beam", [hidden_ND], "topk")
        recall_N = _recall(layer.beam(hidden_ND, k, k)[1], layer.topk(hidden_ND, k)[1])
        found.append(Measurement("beam_recall", float(recall_N.mean()), recall_N.tolist(), detail={"width": k}))
    if "sample_seconds" in wanted:
        time("sample_seconds", "sample", [hidden_ND], "sample")
    return found


def _recall(found_NK: NDArray, exact_NK: NDArray) -> NDArray:
    """Return the (N,) share of the exact words of each row that were found."""
    return (exact_NK[:, :, None] == found_NK[:, None, :]).any(axis=2).mean(axis=1)
