"""Held-out perplexity during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vocabench.harness.report.figures._figure import Axis, Figure, Form, Mark, form_of_cell, unless_test
from vocabench.harness.report.rows import set_apart
from vocabench.harness.run.rows import Row


class _Line(NamedTuple):
    """Training curve of a row.

    Attributes:
        curve: Held-out perplexity by step or epoch.
        changes: Re-organizations of the clusters, with the perplexity before and after.
    """

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


def curves(rows: Sequence[Row]) -> list[Figure]:
    """Return held-out perplexity during training, with a jump where clusters re-organize (figure 1 of SOHSM)."""
    groups: dict[tuple[str, str, int, str, str], dict[Form, _Line]] = {}
    curved = [row for row in rows if any(m.detail.get("curve") for m in row.measurements)]
    for row, apart in zip(curved, set_apart(curved), strict=True):
        cell = row.cell
        for measurement in row.measurements:
            detail = measurement.detail
            curve = [point for point in detail.get("curve", ()) if (point.get("perplexity") or 0) > 0]
            if measurement.quantity == "perplexity" and (len(curve) > 1 or (curve and detail.get("reorganizations"))):
                key = cell.task, cell.dataset, cell.vocab, detail.get("split", ""), cell.framework
                line = _Line(curve, detail.get("reorganizations", []))
                groups.setdefault(key, {})[form_of_cell(cell, apart)] = line
    figures = []
    for (task, dataset, vocab, split, framework), lines in groups.items():
        reorganized = any(line.changes for line in lines.values())
        unit = "steps" if any("step" in point for line in lines.values() for point in line.curve) else "epochs"
        points = [(form, step, value) for form, line in lines.items() for step, value in line.points]
        figures.append(
            Figure(
                "training",
                f"Training: {task.replace('_', ' ')} on {dataset}{unless_test(split)}, {vocab:,} words, {framework}",
                "Perplexity of held-out text during training."
                + (" Where clusters re-organize, it is that of a sample just before and after." if reorganized else ""),
                "lines",
                Axis(f"training {unit}", "count", is_logarithmic=False),
                Axis("held-out perplexity"),
                [Mark(form, step, value) for form, step, value in points],
                ("method", "step", "perplexity"),
                [(form.full_name, f"{step:,.0f}", f"{value:.2f}") for form, step, value in points],
                "; ".join(f"{form.full_name}: ends at {line.points[-1][1]:.1f}" for form, line in lines.items()),
            )
        )
    return figures
