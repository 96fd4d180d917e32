"""Decoding time against the length of transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.report import svg
from vocabench.harness.report.figures._figure import Figure, Looks, name_of, name_of_cell, unless_test
from vocabench.harness.report.rows import Record, trial
from vocabench.harness.report.svg import Axes
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


def gains(rows: Sequence[Row], records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Draw the decoding time of full softmax divided by that of each layer, by the length of the transcript.

    Layers that disagree with their definition are left out.
    """
    wrong = {
        _layer(name_of(r), r["framework"], r["precision"], r["device"])
        for r in records
        if r["task"] == "speech" and r["agreement"] == DISAGREE
    }
    trials: dict[str, tuple[Cell, dict[str, list[dict[str, Any]]]]] = {}
    for row in rows:
        cell = row.cell
        name = name_of_cell(cell)
        layer = _layer(name, cell.framework, cell.precision, cell.device)
        for measurement in row.measurements:
            parts = measurement.detail.get("by_length")
            if measurement.quantity == "rtf" and parts and layer not in wrong:
                trials.setdefault(trial(row), (cell, {}))[1][name] = parts
    drawn = []
    for number, (cell, by_name) in enumerate(trials.values()):
        baseline = by_name.get(BASELINE, [])
        lines = {name: _points(parts, baseline) for name, parts in by_name.items() if name != BASELINE}
        lines = {name: points for name, points in lines.items() if len(points) > 1}  # a single point shows no trend
        if not lines:
            continue

        def draw(axes: Axes, lines: dict[str, list[_Point]] = lines) -> None:
            for name, points in lines.items():
                axes.plot(
                    [point.length for point in points],
                    [point.gain for point in points],
                    linewidth=1.4,
                    markersize=5,
                    label=svg.short(name),
                    **looks[name],
                )
            axes.axhline(1.0, color="#888", linewidth=1)
            axes.set(xlabel="length of the transcript (units)", ylabel="times faster than full softmax")
            svg.logarithmic(axes.yaxis)
            axes.grid(axis="y")
            svg.legend(axes)

        title = f"Speed-up in decoding by length of the transcript: {_setting(cell)}"
        drawn.append(
            Figure(
                "decoding",
                title,
                "Decoding time of full softmax divided by that of the layer, encoder included, by the length of the "
                "reference transcript; the line at 1 is full softmax. Layers decode one after the other, so these "
                "times are noisier than paired timings, and they depend on how many units a model outputs.",
                svg.drawn(draw, name=f"lengths{number}", title=title, description=_description(lines)),
                ("method", "units an utterance", "utterances", "speed-up", "time"),
                [
                    (name, f"{point.length:.1f}", f"{point.utterances:,}", f"{point.gain:.2f}", seconds(point.seconds))
                    for name, points in lines.items()
                    for point in points
                ],
            )
        )
    return drawn


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


def _description(lines: dict[str, list[_Point]]) -> str:
    return "; ".join(
        f"{name}: {points[0].gain:.2f} times at {points[0].length:.0f} units, {points[-1].gain:.2f} at "
        f"{points[-1].length:.0f}"
        for name, points in lines.items()
    )
