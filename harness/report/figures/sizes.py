"""Speed and memory against the size of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.report.figures._by_vocabulary import by_vocabulary, setting
from vocabench.harness.report.figures._figure import Axis, Figure, Mark, form_of, sizes_axis
from vocabench.harness.report.rows import Record, value_of
from vocabench.harness.report.units import seconds, size
from vocabench.harness.tasks.shared.paired import BASELINE


def speed(records: Sequence[Record]) -> list[Figure]:
    """Return the speed-up of forward and backward pass over full softmax by size of the vocabulary.

    Layers that disagree with their definition are left out.
    """
    agreed = [r for r in records if r["agreement"] != DISAGREE and r["ratio_to_full_softmax"] is not None]
    figures = []
    for key, by_name in by_vocabulary(agreed, "layer_seconds"):
        lines = {name: points for name, points in by_name.items() if points[0]["method"] != BASELINE}
        points = [r for line in lines.values() for r in line]
        if not points:
            continue
        figures.append(
            _by_size(
                "speed",
                f"Speed-up over full softmax: {setting(key)}",
                "Forward and backward pass of the layer, in alternation with full softmax of the same framework. Bars "
                "are 95 % intervals.",
                Axis("times as fast as full softmax", "ratio", includes=1.0),
                [
                    Mark(form_of(r), r["vocab"], r["ratio_to_full_softmax"] or 0, r["ratio_low"], r["ratio_high"])
                    for r in points
                ],
                ("method", "words", "speed-up", "95 % interval", "time"),
                [
                    (
                        name,
                        f"{r['vocab']:,}",
                        f"{r['ratio_to_full_softmax']:.2f}",
                        f"{r['ratio_low']:.2f} to {r['ratio_high']:.2f}",
                        seconds(value_of(r)),
                    )
                    for name, line in lines.items()
                    for r in line
                ],
                "; ".join(
                    f"{name}: {line[-1]['ratio_to_full_softmax']:.1f} times at {line[-1]['vocab']:,} words"
                    for name, line in lines.items()
                ),
                rule=1.0,
            )
        )
    return figures


def memory(records: Sequence[Record]) -> list[Figure]:
    """Return the peak additional memory of forward and backward pass by size of the vocabulary."""
    return [
        _by_size(
            "memory",
            f"Peak memory: {setting(key)}",
            "Peak memory of the forward and backward pass of the layer, beyond what was allocated before.",
            Axis("peak additional memory", "bytes"),
            [Mark(form_of(r), r["vocab"], value_of(r)) for line in lines.values() for r in line],
            ("method", "words", "peak memory"),
            [(name, f"{r['vocab']:,}", size(value_of(r))) for name, line in lines.items() for r in line],
            "; ".join(
                f"{name}: {size(value_of(line[-1]))} at {line[-1]['vocab']:,} words" for name, line in lines.items()
            ),
        )
        for key, lines in by_vocabulary(
            [r for r in records if r["quantity"] == "peak_bytes" and (r["value"] or 0) > 0], "peak_bytes"
        )
    ]


def _by_size(
    section: str,
    title: str,
    caption: str,
    axis: Axis,
    marks: Sequence[Mark],
    columns: Sequence[str],
    lines: Sequence[Sequence[str]],
    description: str,
    rule: float | None = None,
) -> Figure:
    """Return lines by size of the vocabulary, or, where only one was measured, a list of the methods."""
    sizes = sorted({int(mark.x) for mark in marks})
    if len(sizes) > 1:
        return Figure(
            section, title, caption, "lines", sizes_axis(sizes), axis, marks, columns, lines, description, rule
        )
    ordered = sorted(zip(marks, lines, strict=True), key=lambda pair: pair[0].y, reverse=rule is not None)
    return Figure(
        section,
        f"{title}, {sizes[0]:,} words",
        caption,
        "dots",
        axis,
        Axis("method"),
        [Mark(mark.form, mark.y, 0.0, mark.low, mark.high) for mark, _ in ordered],
        columns,
        [line for _, line in ordered],
        description,
        rule,
    )
