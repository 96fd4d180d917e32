"""Decoding time against the length of transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness.report import svg
from vocabench.harness.report.figures._figure import Figure, Looks, name_of, name_of_cell, unless_test
from vocabench.harness.report.rows import Record, trial
from vocabench.harness.report.svg import Axes
from vocabench.harness.report.table import seconds
from vocabench.harness.run.store import Row
from vocabench.harness.tasks.shared.paired import BASELINE


@dataclass(frozen=True)
class _Point:
    """
    Attributes:
        length: Units an utterance.
        gain: Full softmax's decoding time over the layer's, which is `seconds`.
    """

    utterances: int
    length: float
    gain: float
    seconds: float


def gains(rows: Sequence[Row], records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Full softmax's decoding time over each layer's by the length of the transcript; what disagrees has none."""
    wrong = {_layer(r, name_of(r)) for r in records if r["task"] == "speech" and r["agreement"] == "disagree"}
    trials: dict[str, tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]] = {}
    for row in rows:
        cell = row["cell"]
        name = name_of_cell(cell)
        for measurement in row["measurements"]:
            found = measurement.get("detail", {}).get("by_length")
            if measurement["quantity"] == "rtf" and found and _layer(cell, name) not in wrong:
                trials.setdefault(trial(row), (cell, {}))[1][name] = found
    made = []
    for number, (cell, by_name) in enumerate(trials.values()):
        baseline = by_name.get(BASELINE, [])
        lines = {name: _points(found, baseline) for name, found in by_name.items() if name != BASELINE}
        lines = {name: points for name, points in lines.items() if len(points) > 1}  # one length shows no growth
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

        title = f"What a layer gains in decoding as transcripts grow: {_setting(cell)}"
        made.append(
            Figure(
                "decoding",
                title,
                "The time in which full softmax decodes utterances over the layer's, encoder included, by the length "
                "of what was said; the line at 1 is full softmax. Each was decoded once, one layer after the other: "
                "these times show more noise than the paired timings of layers. A model that hears more or fewer units "
                "than were said takes another time for that, too.",
                svg.drawn(draw, name=f"lengths{number}", title=title, description=_spoken(lines)),
                ("method", "units an utterance", "utterances", "speed-up", "time"),
                [
                    (name, f"{point.length:.1f}", f"{point.utterances:,}", f"{point.gain:.2f}", seconds(point.seconds))
                    for name, points in lines.items()
                    for point in points
                ],
            )
        )
    return made


def _layer(fields: Record, name: str) -> tuple[str, ...]:
    """What a verdict is of."""
    return (name, fields["framework"], fields["precision"], fields["device"])


def _setting(cell: dict[str, Any]) -> str:
    settings = cell["settings"]
    units = f"{cell['vocab']:,} {settings.get('units', '')}".strip()
    return f"{cell['dataset']}{unless_test(settings.get('split'))}, {units}, {cell['framework']}"


def _points(found: Sequence[dict[str, Any]], baseline: Sequence[dict[str, Any]]) -> list[_Point]:
    """By rising length; none where full softmax decoded other utterances, or the parts were cut otherwise."""
    if [_utterances(part) for part in found] != [_utterances(part) for part in baseline]:
        return []
    return [
        _Point(
            part["utterances"],
            part["units_per_utterance"],
            other["decode_seconds"] / part["decode_seconds"],
            part["decode_seconds"],
        )
        for part, other in zip(found, baseline, strict=True)
    ]


def _utterances(part: dict[str, Any]) -> tuple[float, ...]:
    return (part["utterances"], part["units_per_utterance"], part["audio_seconds"])


def _spoken(lines: dict[str, list[_Point]]) -> str:
    return "; ".join(
        f"{name}: {points[0].gain:.2f} times at {points[0].length:.0f} units, {points[-1].gain:.2f} at "
        f"{points[-1].length:.0f}"
        for name, points in lines.items()
    )
