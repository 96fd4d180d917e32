"""Speed and memory against the size of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vocabench.harness.report import svg
from vocabench.harness.report.figures._by_vocabulary import by_vocabulary, setting
from vocabench.harness.report.figures._figure import Figure, Looks
from vocabench.harness.report.rows import Record
from vocabench.harness.report.svg import Axes
from vocabench.harness.report.table import seconds, size
from vocabench.harness.tasks.shared.paired import BASELINE


def speed(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Speed-up of forward and backward over full softmax by size of the vocabulary; what disagrees has none."""
    agreed = [r for r in records if r["agreement"] != "disagree" and r["ratio_to_full_softmax"] is not None]
    made = []
    for number, (key, lines) in enumerate(by_vocabulary(agreed, "layer_seconds")):
        lines = {name: found for name, found in lines.items() if found[0]["method"] != BASELINE}
        if not lines:
            continue

        def draw(axes: Axes, lines: dict[str, list[Record]] = lines) -> None:
            for name in lines:
                found = lines[name]
                ratio = [r["ratio_to_full_softmax"] for r in found]
                below = [max(0.0, r["ratio_to_full_softmax"] - r["ratio_low"]) for r in found]
                above = [max(0.0, r["ratio_high"] - r["ratio_to_full_softmax"]) for r in found]
                sizes = [r["vocab"] for r in found]
                axes.errorbar(
                    sizes,
                    ratio,
                    yerr=[below, above],
                    capsize=2,
                    linewidth=1.4,
                    markersize=5,
                    label=svg.short(name),
                    **looks[name],
                )
            axes.axhline(1.0, color="#888", linewidth=1)
            axes.set_ylabel("times faster than full softmax")
            svg.logarithmic(axes.yaxis)
            _size_axis(axes, (r for found in lines.values() for r in found))
            svg.legend(axes)

        made.append(
            Figure(
                "speed",
                f"Speed-up over full softmax: {setting(key)}",
                "Forward and backward of the layer, timed turn by turn with full softmax of the same framework; bars "
                "are 95 % intervals, the line at 1 is full softmax.",
                svg.drawn(draw, name=f"speed{number}", title=f"Speed-up, {setting(key)}", description=_spoken(lines)),
                ("method", "words", "speed-up", "95 % interval", "time"),
                [
                    (
                        name,
                        f"{r['vocab']:,}",
                        f"{r['ratio_to_full_softmax']:.2f}",
                        f"{r['ratio_low']:.2f} to {r['ratio_high']:.2f}",
                        seconds(r["value"]),
                    )
                    for name, found in lines.items()
                    for r in found
                ],
            )
        )
    return made


def _spoken(lines: dict[str, list[Record]]) -> str:
    last = {name: found[-1] for name, found in lines.items()}
    return "; ".join(
        f"{name}: {r['ratio_to_full_softmax']:.1f} times at {r['vocab']:,} words" for name, r in last.items()
    )


def memory(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Peak extra memory of forward and backward against the size of the vocabulary."""
    made = []
    for number, (key, lines) in enumerate(by_vocabulary(records, "peak_bytes")):

        def draw(axes: Axes, lines: dict[str, list[Record]] = lines) -> None:
            for name in lines:
                points = [(r["vocab"], r["value"] / 2**20) for r in lines[name]]
                axes.plot(*zip(*points, strict=True), linewidth=1.4, markersize=5, label=svg.short(name), **looks[name])
            axes.set_ylabel("peak extra memory (MiB)")
            svg.logarithmic(axes.yaxis)
            _size_axis(axes, (r for found in lines.values() for r in found))
            svg.legend(axes)

        largest = {name: found[-1] for name, found in lines.items()}
        made.append(
            Figure(
                "memory",
                f"Peak memory: {setting(key)}",
                "Most memory beyond what was held before, during forward and backward of the layer.",
                svg.drawn(
                    draw,
                    name=f"memory{number}",
                    title=f"Peak memory, {setting(key)}",
                    description="; ".join(
                        f"{n}: {size(r['value'])} at {r['vocab']:,} words" for n, r in largest.items()
                    ),
                ),
                ("method", "words", "peak memory"),
                [(name, f"{r['vocab']:,}", size(r["value"])) for name, found in lines.items() for r in found],
            )
        )
    return made


def _size_axis(axes: Axes, records: Iterable[Record]) -> None:
    sizes = sorted({record["vocab"] for record in records})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [svg.thousands(vocab) for vocab in sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("vocabulary (words)")
    axes.grid(axis="y")
