"""Decoding time against the length of transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.report.figures._figure import Axis, Figure, Form, Mark, form_of_cell, name_of, unless_test
from vocabench.harness.report.rows import Record, trial
from vocabench.harness.report.units import seconds
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Row
from vocabench.harness.tasks.shared.paired import BASELINE


@dataclass(frozen=True)
class _Point:
    """Decoding time of a layer on utterances of similar length.

    Attributes:
        utterances: Number of utterances.
        length: Mean number of units of an utterance.
        gain: Decoding time of full softmax divided by that of the layer.
        seconds: Decoding time of the layer.
    """

    utterances: int
    length: float
    gain: float
    seconds: float


def gains(rows: Sequence[Row], records: Sequence[Record]) -> list[Figure]:
    """Return the decoding time of full softmax divided by that of each layer, by the length of the transcript.

    Layers that disagree with their definition are left out.
    """
    wrong = {
        _layer(name_of(r), r["framework"], r["precision"], r["device"])
        for r in records
        if r["task"] == "speech" and r["agreement"] == DISAGREE
    }
    trials: dict[str, tuple[Cell, dict[Form, list[dict[str, Any]]]]] = {}
    for row in rows:
        cell, form = row.cell, form_of_cell(row.cell)
        layer = _layer(form.name, cell.framework, cell.precision, cell.device)
        for measurement in row.measurements:
            parts = measurement.detail.get("by_length")
            if measurement.quantity == "rtf" and parts and layer not in wrong:
                trials.setdefault(trial(row), (cell, {}))[1][form] = parts
    figures = []
    for cell, by_form in trials.values():
        baseline = next((parts for form, parts in by_form.items() if form.name == BASELINE), [])
        lines = {form: _points(parts, baseline) for form, parts in by_form.items() if form.name != BASELINE}
        lines = {form: points for form, points in lines.items() if len(points) > 1}  # a single point shows no trend
        if not lines:
            continue
        marks = [(form, point) for form, points in lines.items() for point in points]
        figures.append(
            Figure(
                "decoding",
                f"Speed-up in decoding by length of the transcript: {_setting(cell)}",
                "Decoding time of full softmax divided by that of the layer, encoder included. Layers decode one after "
                "the other, so these times are noisier than paired timings, and they depend on how many units a model "
                "outputs.",
                "lines",
                Axis("length of the reference transcript (units)", "count", is_logarithmic=False),
                Axis("times as fast as full softmax", "ratio", includes=1.0),
                [Mark(form, point.length, point.gain) for form, point in marks],
                ("method", "units an utterance", "utterances", "speed-up", "time"),
                [
                    (
                        form.name,
                        f"{point.length:.1f}",
                        f"{point.utterances:,}",
                        f"{point.gain:.2f}",
                        seconds(point.seconds),
                    )
                    for form, point in marks
                ],
                _description(lines),
                rule=1.0,
            )
        )
    return figures


def _layer(name: str, framework: str, precision: str, device: str) -> tuple[str, ...]:
    """Return the key of a verdict."""
    return (name, framework, precision, device)


def _setting(cell: Cell) -> str:
    units = f"{cell.vocab:,} {cell.settings.get('units', '')}".strip()
    return f"{cell.dataset}{unless_test(cell.settings.get('split'))}, {units}, {cell.framework}"


def _points(parts: Sequence[dict[str, Any]], baseline: Sequence[dict[str, Any]]) -> list[_Point]:
    """Return points by increasing length; none if full softmax decoded other utterances or was divided differently."""
    if [_utterances(part) for part in parts] != [_utterances(part) for part in baseline]:
        return []
    return [
        _Point(
            part["utterances"],
            part["units_per_utterance"],
            baseline_part["decode_seconds"] / part["decode_seconds"],
            part["decode_seconds"],
        )
        for part, baseline_part in zip(parts, baseline, strict=True)
    ]


def _utterances(part: dict[str, Any]) -> tuple[float, ...]:
    return (part["utterances"], part["units_per_utterance"], part["audio_seconds"])


def _description(lines: dict[Form, list[_Point]]) -> str:
    return "; ".join(
        f"{form.name}: {points[0].gain:.2f} times at {points[0].length:.0f} units, {points[-1].gain:.2f} at "
        f"{points[-1].length:.0f}"
        for form, points in lines.items()
    )
