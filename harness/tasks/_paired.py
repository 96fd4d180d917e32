"""Measurements of a layer turn by turn with full softmax, as several tasks take them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from harness.cells import Cell
from harness.quantities import Measurement
from harness.timing import Paired, Work, paired
from impls.contract import Layer

BASELINE = "full_softmax"
K = 10  # words asked for in decoding


def timed(cell: Cell, quantity: str, baseline: Work, other: Work, detail: dict[str, Any]) -> tuple[Paired, Measurement]:
    """Both in alternation, under the cell's `rounds` and `budget`."""
    result = paired(baseline, other, rounds=cell.settings["rounds"], budget_seconds=cell.settings["budget"])
    seconds, ratio = result.other.seconds, result.ratio
    return result, Measurement(
        quantity,
        seconds.value,
        samples=result.other.samples,
        low=seconds.low,
        high=seconds.high,
        ratio={
            # Full softmax over itself is 1 by definition; the interval of the A/A comparison shows the noise.
            "value": 1.0 if cell.method == BASELINE else ratio.value,
            "low": ratio.low,
            "high": ratio.high,
            "samples": result.ratios,
            "baseline_samples": result.baseline.samples,
        },
        detail=detail | {"repeats": result.other.repeats},
    )


def decoding(cell: Cell, layer: Layer, baseline: Layer, hidden_ND: NDArray) -> list[Measurement]:
    """Exact top-k of `hidden_ND`, all at once and one alone, and what share of the layer it took.

    Args:
        layer: What is measured.
        baseline: Full softmax of the same size; what its weights are does not change its time.
        hidden_ND: How far bounds reach depends on them: those of a trained model are peaked, random ones flat.
    """
    k = min(K, layer.spec.vocab)
    share_N = layer.expanded_share(hidden_ND, k)
    found = []
    for quantity, rows in (("topk_seconds", hidden_ND), ("topk1_seconds", hidden_ND[:1])):
        works = [one.prepare("topk", rows, k=k) for one in (baseline, layer)]
        found.append(timed(cell, quantity, works[0], works[1], {"rows": len(rows), "k": k})[1])
    found.append(Measurement("expanded_share", float(share_N.mean()), share_N.tolist()))
    return found
