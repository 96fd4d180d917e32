"""Held-out perplexity during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vocabench.harness.report import svg
from vocabench.harness.report.figures._figure import Figure, Looks, name_of_cell, unless_test
from vocabench.harness.report.rows import set_apart
from vocabench.harness.report.svg import Axes
from vocabench.harness.run.rows import Row


class _Line(NamedTuple):
    """Training curve of a row.

    Attributes:
        name: Method with its options, which determines the style.
        curve: Held-out perplexity by step or epoch.
        changes: Re-organizations of the clusters, with the perplexity before and after.
    """

    name: str
    curve: list[dict[str, float]]
    changes: list[dict[str, float]]

    @property
    def points(self) -> list[tuple[float, float]]:
        points = [(point["step" if "step" in point else "epoch"], point["perplexity"]) for point in self.curve]
        for change in self.changes:
            points += [
                (change["step"], change[key])
                for key in ("perplexity_before", "perplexity_after")
                if change.get(key) is not None
            ]
        return sorted(points, key=lambda point: point[0])  # stable: "before" stays first


def curves(rows: Sequence[Row], looks: Looks) -> list[Figure]:
    """Draw held-out perplexity during training, with a jump where clusters re-organize (figure 1 of SOHSM)."""
    groups: dict[tuple[str, str, str, str], dict[str, _Line]] = {}
    for row, apart in zip(rows, set_apart(rows), strict=True):
        cell = row.cell
        for measurement in row.measurements:
            detail = measurement.detail
            curve = [point for point in detail.get("curve", ()) if point.get("perplexity") is not None]
            if measurement.quantity == "perplexity" and (len(curve) > 1 or detail.get("reorganizations")):
                name = name_of_cell(cell)
                group = groups.setdefault((cell.task, cell.dataset, detail.get("split", ""), cell.framework), {})
                label = f"{name} ({apart})" if apart else name
                group[label] = _Line(name, curve, detail.get("reorganizations", []))
    drawn = []
    for number, ((task, dataset, split, framework), lines) in enumerate(groups.items()):

        def draw(axes: Axes, lines: dict[str, _Line] = lines) -> None:
            for label, line in lines.items():
                style = {"linewidth": 1.3, "markersize": 4, **looks[line.name]}
                axes.plot(*zip(*line.points, strict=True), label=svg.short(label), **style)
            unit = "steps" if any("step" in point for line in lines.values() for point in line.curve) else "epochs"
            axes.set(xlabel=f"training {unit}", ylabel="held-out perplexity")
            svg.logarithmic(axes.yaxis)
            axes.grid(axis="y")
            svg.legend(axes)

        title = f"Training: {task.replace('_', ' ')} on {dataset}{unless_test(split)}, {framework}"
        reorganized = any(line.changes for line in lines.values())
        drawn.append(
            Figure(
                "training",
                title,
                "Perplexity of held-out text during training."
                + (" Where clusters re-organize, it is that of a sample just before and after." if reorganized else ""),
                svg.drawn(
                    draw,
                    name=f"curve{number}",
                    title=title,
                    description="; ".join(
                        f"{label}: ends at {line.points[-1][1]:.1f}" for label, line in lines.items()
                    ),
                ),
                ("method", "step", "perplexity"),
                [
                    (label, f"{step:,.0f}", f"{value:.2f}")
                    for label, line in lines.items()
                    for step, value in line.points
                ],
            )
        )
    return drawn
