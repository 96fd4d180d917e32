"""Measurements of a layer interleaved with full softmax, which several tasks use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers
from vocabench.harness.measure.layout import Layout
from vocabench.harness.measure.machine_load import LoadMeter
from vocabench.harness.measure.timing import (
    DEFINITION,
    IN_FLIGHT_DEFINITION,
    ROUNDS_OF_ONE_PROCESS,
    Clock,
    Paired,
    Steady,
    Work,
    paired,
)
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Ratio
from vocabench.harness.run.settings import Setting
from vocabench.impls.contract import Layer
from vocabench.impls.errors import BadInput
from vocabench.impls.options import Choice, Number
from vocabench.impls.spec import LayerSpec

BASELINE = "full_softmax"
K = 10  # number of words in decoding
# Hidden vectors decoded individually. Of a text, a search takes longer for some than for others; random ones are alike.
_ALONE, _ALIKE = 32, 8
DECODING = ("topk_seconds", "beam_seconds", "sample_seconds")
# Work on one word or none per hidden vector, and whether the vectors are decoded individually, by quantity: timed only
# if a command or a suite asks for it.
_OF_ROWS = {
    "sample_seconds": ("sample", False),
    "sample1_seconds": ("sample", True),
    "nucleus_sample_seconds": ("nucleus_sample", False),
    "nucleus_sample1_seconds": ("nucleus_sample", True),
    "score_seconds": ("score", False),
    "entropy_seconds": ("entropy", False),
}
ON_REQUEST = tuple(quantity for quantity in _OF_ROWS if quantity not in DECODING)
_LEAST_ROUNDS = 2  # of one of several processes, whose interval comes from the spread between them


def timing_settings(processes: int, rounds: int, budget: float) -> dict[str, Setting]:
    """Return the settings of interleaved timing, with these defaults."""
    return {
        "processes": Number(processes, 1, 100, "processes in which times are measured"),
        "rounds": Number(rounds, _LEAST_ROUNDS, 1000, "interleaved rounds of each process; of a single one at least 6"),
        "baseline_bias": Choice(
            True, (True, False), "whether the baseline has biases, if the layer is not a flat softmax"
        ),
        "budget": Number(budget, 0.0, 1e6, "seconds per quantity and process after which no further round starts"),
    }


def check_rounds(settings: Mapping[str, Any]) -> None:
    """Raise `BadInput` if the rounds of a single process are too few for an interval."""
    rounds, processes = settings["rounds"], settings["processes"]
    if processes == 1 and rounds < ROUNDS_OF_ONE_PROCESS:
        raise BadInput(f"rounds={rounds} in one process: allowed: at least {ROUNDS_OF_ONE_PROCESS}, or more processes")


def _of_all_words(framework: str, spec: LayerSpec, device: str) -> Layer:
    return layers.from_spec(framework, spec, device)


@dataclass
class Pair:
    """A layer and full softmax of the same size, in the same process.

    Attributes:
        cell: The cell, with its `processes`, `rounds` and `budget`.
        spec: Specification of the layer, with its form.
        plain: Specification of full softmax, with its form.
        layout: Order of creation and calls.
        weights: What weights decode: "initial" or "trained" ones of both layers, or "fitted" if those of the layer are
            trained and those of full softmax fitted to its scores.
        make: Creates a layer of a specification in the framework and on the device of the cell.
        clock: Creates the clock of a quantity.
        meter: Creates the meter of the machine's load during a quantity.
    """

    cell: Cell
    spec: LayerSpec
    plain: LayerSpec
    layout: Layout = field(default_factory=Layout)
    weights: str = "initial"
    make: Callable[[str, LayerSpec, str], Layer] = _of_all_words
    clock: Callable[[], Clock] = Steady
    meter: Callable[[], LoadMeter] = LoadMeter

    def create(self) -> None:
        """Create both layers, in the order of the layout."""
        framework, device = self.cell.framework, self.cell.device
        self.baseline, self.layer = self.layout.create(
            lambda: self.make(framework, self.plain, device),
            lambda: self.make(framework, self.spec, device),
        )

    def delete(self) -> None:
        """Delete both layers."""
        del self.baseline, self.layer

    def timed(
        self, quantity: str, baseline: Sequence[Work], other: Sequence[Work], detail: dict[str, Any], calls: int = 1
    ) -> tuple[Paired, Measurement]:
        """Time both alternately, within the `rounds` and `budget` of the cell. Each sample is `calls` calls."""
        settings, layout, meter = self.cell.settings, self.layout, self.meter()
        result = paired(
            baseline,
            other,
            rounds=settings["rounds"],
            budget_seconds=settings["budget"],
            least_rounds=ROUNDS_OF_ONE_PROCESS if settings["processes"] == 1 else _LEAST_ROUNDS,
            calls=calls,
            other_first=not layout.baseline_called_first,
            clock=self.clock(),
        )
        process = {
            "rounds": len(result.ratios),
            "baseline_created_first": layout.baseline_created_first,
            "baseline_called_first": layout.baseline_called_first,
            "offset": layout.offset,
            **meter.read(),
        }
        seconds, ratio = result.other.seconds, result.ratio
        return result, Measurement(
            quantity,
            seconds.value,
            samples=result.other.samples,
            low=seconds.low,
            high=seconds.high,
            ratio=Ratio(
                # Full softmax relative to itself is 1 by definition; the interval of the A/A comparison is the noise.
                value=1.0 if self.cell.method == BASELINE else ratio.value,
                low=ratio.low,
                high=ratio.high,
                samples=result.ratios,
                baseline_samples=result.baseline.samples,
            ),
            detail=detail
            | {
                "turns": result.other.turns,
                "timing": DEFINITION if calls == 1 else IN_FLIGHT_DEFINITION,
                "form": self.spec.form,
                "baseline_form": self.plain.form,
                "processes": [process],
            },
        )

    def decoding(
        self, hidden_ND: NDArray, wanted: Sequence[str], targets_N: NDArray[np.int64] | None = None
    ) -> list[Measurement]:
        """Time finding, drawing and scoring words for `hidden_ND`, interleaved with full softmax.

        Measures the exact top-k of all rows and of single rows with the share of the layer that was scored, a beam of
        width k with its recall of the exact top-k, and per row one sampled word, also for single rows, the score of one
        given word and the entropy. The time of a single row is the mean over some of the rows, decoded one after the
        other: bounds help some rows more than others, and a row that is decoded repeatedly would find its clusters in a
        cache, which is not the case when decoding a text.

        Args:
            hidden_ND: Hidden vectors. The bounds depend on them: a trained model has peaked distributions, random
                vectors near-uniform ones.
            wanted: The quantities to measure, from `DECODING` and `ON_REQUEST`.
            targets_N: The given words, if `wanted` has "score_seconds".
        """
        layer, k = self.layer, min(K, self.spec.vocab)
        found: list[Measurement] = []

        def time(
            quantity: str, work: str, batches: Sequence[NDArray], against: str, given: NDArray[np.int64] | None = None
        ) -> None:
            full, own = self.layout.create(
                lambda: [self.baseline.prepare(against, rows_ND, targets=given, k=k) for rows_ND in batches],
                lambda: [layer.prepare(work, rows_ND, targets=given, k=k) for rows_ND in batches],
            )
            detail = {"rows": len(batches[0]), "batches": len(batches), "weights": self.weights}
            found.append(self.timed(quantity, full, own, detail | ({"k": k} if work in ("topk", "beam") else {}))[1])
            found[-1].detail["formulation"] = layer.formulation()  # complete after the first call

        if "topk_seconds" in wanted:
            share_N = layer.expanded_share(hidden_ND, k)
            time("topk_seconds", "topk", [hidden_ND], "topk")
            most = _ALIKE if self.weights == "initial" else _ALONE
            time("topk1_seconds", "topk", _alone(hidden_ND, most), "topk")
            found.append(Measurement("expanded_share", float(share_N.mean()), share_N.tolist()))
        if "beam_seconds" in wanted:
            time("beam_seconds", "beam", [hidden_ND], "topk")
            recall_N = _recall(layer.beam(hidden_ND, k, k)[1], layer.topk(hidden_ND, k)[1])
            found.append(Measurement("beam_recall", float(recall_N.mean()), recall_N.tolist(), detail={"width": k}))
        for quantity, (work, alone) in _OF_ROWS.items():
            if quantity in wanted:
                batches = _alone(hidden_ND, _ALIKE) if alone else [hidden_ND]
                time(quantity, work, batches, work, targets_N if work == "score" else None)
        return found


def _alone(hidden_ND: NDArray, most: int) -> list[NDArray]:
    """Return up to `most` of the hidden vectors, each as a batch (1, D)."""
    row_R = np.linspace(0, len(hidden_ND) - 1, min(most, len(hidden_ND)), dtype=np.int64)
    return [hidden_ND[row : row + 1] for row in row_R]


def _recall(found_NK: NDArray, exact_NK: NDArray) -> NDArray:
    """Return the (N,) share of the exact words of each row that were found."""
    return (exact_NK[:, :, None] == found_NK[:, None, :]).any(axis=2).mean(axis=1)
