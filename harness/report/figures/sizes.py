"""Speed and memory against the size of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.report import svg
from vocabench.harness.report.figures._by_vocabulary import by_vocabulary, setting
from vocabench.harness.report.figures._figure import Figure, Looks
from vocabench.harness.report.rows import Record, error_bars, value_of
from vocabench.harness.report.svg import Axes
from vocabench.harness.report.units import seconds, size
from vocabench.harness.tasks.shared.paired import BASELINE


def speed(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Draw the speed-up of forward and backward pass over full softmax by size of the vocabulary.

    Layers that disagree with their definition are left out.
    """
    agreed = [r for r in records if r["agreement"] != DISAGREE and r["ratio_to_full_softmax"] is not None]
    drawn = []
    for number, (key, lines) in enumerate(by_vocabulary(agreed, "layer_seconds")):
        lines = {name: points for name, points in lines.items() if points[0]["method"] != BASELINE}
        if not lines:
            continue

        def draw(axes: Axes, lines: dict[str, list[Record]] = lines) -> None:
            for name, points in lines.items():
                ratio, bars = error_bars(points)
                sizes = [r["vocab"] for r in points]
                axes.errorbar(
                    sizes,
                    ratio,
                    yerr=bars,
                    capsize=2,
                    linewidth=1.4,
                    markersize=5,
                    label=svg.short(name),
                    **looks[name],
                )
            axes.axhline(1.0, color="#888", linewidth=1)
            axes.set_ylabel("times faster than full softmax")
            svg.logarithmic(axes.yaxis)
            _size_axis(axes, (r for points in lines.values() for r in points))
            svg.legend(axes)

        drawn.append(
            Figure(
                "speed",
                f"Speed-up over full softmax: {setting(key)}",
                "Forward and backward pass of the layer, interleaved with full softmax of the same framework. Bars are "
                "95 % intervals, the line at 1 is full softmax.",
                svg.drawn(
                    draw, name=f"speed{number}", title=f"Speed-up, {setting(key)}", description=_description(lines)
                ),
                ("method", "words", "speed-up", "95 % interval", "time"),
                [
                    (
                        name,
                        f"{r['vocab']:,}",
                        f"{r['ratio_to_full_softmax']:.2f}",
                        f"{r['ratio_low']:.2f} to {r['ratio_high']:.2f}",
                        seconds(value_of(r)),
                    )
                    for name, points in lines.items()
                    for r in points
                ],
            )
        )
    return drawn


def _description(lines: dict[str, list[Record]]) -> str:
    last = {name: points[-1] for name, points in lines.items()}
    return "; ".join(
        f"{name}: {r['ratio_to_full_softmax']:.1f} times at {r['vocab']:,} words" for name, r in last.items()
    )


def memory(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Draw the peak additional memory of forward and backward pass by size of the vocabulary."""
    drawn = []
    for number, (key, lines) in enumerate(by_vocabulary(records, "peak_bytes")):

        def draw(axes: Axes, lines: dict[str, list[Record]] = lines) -> None:
            for name, records_of_name in lines.items():
                points = [(r["vocab"], value_of(r) / 2**20) for r in records_of_name]
                axes.plot(*zip(*points, strict=True), linewidth=1.4, markersize=5, label=svg.short(name), **looks[name])
            axes.set_ylabel("peak additional memory (MiB)")
            svg.logarithmic(axes.yaxis)
            _size_axis(axes, (r for points in lines.values() for r in points))
            svg.legend(axes)

        largest = {name: points[-1] for name, points in lines.items()}
        drawn.append(
            Figure(
                "memory",
                f"Peak memory: {setting(key)}",
                "Peak memory of the forward and backward pass of the layer, beyond what was allocated before.",
                svg.drawn(
                    draw,
                    name=f"memory{number}",
                    title=f"Peak memory, {setting(key)}",
                    description="; ".join(
                        f"{name}: {size(value_of(r))} at {r['vocab']:,} words" for name, r in largest.items()
                    ),
                ),
                ("method", "words", "peak memory"),
                [(name, f"{r['vocab']:,}", size(value_of(r))) for name, points in lines.items() for r in points],
            )
        )
    return drawn


def _size_axis(axes: Axes, records: Iterable[Record]) -> None:
    sizes = sorted({record["vocab"] for record in records})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [svg.thousands(vocab) for vocab in sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("vocabulary (words)")
    axes.grid(axis="y")
