"""Numerical error of each layer against its definition."""

from __future__ import annotations

from collections.abc import Sequence

from vocabench.harness.report import svg
from vocabench.harness.report.figures._figure import Figure, name_of
from vocabench.harness.report.rows import Record, groups, value_of
from vocabench.harness.report.svg import Axes


def errors(records: Sequence[Record]) -> list[Figure]:
    """Draw the largest error of each method and framework against the oracle, in units of its tolerance."""
    nonzero = [r for r in records if r["quantity"] == "agreement_error" and r["value"]]
    drawn = []
    for number, ((precision,), group) in enumerate(groups(nonzero, "precision").items()):
        names = list(dict.fromkeys(name_of(r) for r in group))
        frameworks = list(dict.fromkeys(r["framework"] for r in group))

        def draw(
            axes: Axes,
            group: list[Record] = group,
            names: list[str] = names,
            frameworks: list[str] = frameworks,
        ) -> None:
            for framework, look in svg.style(frameworks).items():
                points = [r for r in group if r["framework"] == framework]
                lines = [names.index(name_of(r)) for r in points]
                axes.plot([r["value"] for r in points], lines, linestyle="none", markersize=5, label=framework, **look)
            axes.axvline(1.0, color="#888", linewidth=1)
            axes.set_yticks(range(len(names)), [svg.short(name) for name in names])
            axes.invert_yaxis()
            axes.set(xscale="log", xlabel="largest error (1 = the tolerance)")
            axes.grid(axis="x")
            svg.legend(axes)

        title = f"Agreement with the float64 definition: {precision}"
        outside = [f"{name_of(r)} in {r['framework']}" for r in group if value_of(r) > 1]
        drawn.append(
            Figure(
                "agreement",
                title,
                "Left of the line: within the tolerance of values, gradients, top-k and training steps.",
                svg.drawn(
                    draw,
                    name=f"agreement{number}",
                    title=title,
                    description=f"Outside: {', '.join(outside)}" if outside else "All are within the tolerance.",
                    height=max(1.8, 0.6 + 0.21 * len(names)),
                ),
                ("method", "framework", "largest error"),
                [(name_of(r), r["framework"], f"{r['value']:.2g}") for r in group],
            )
        )
    return drawn
