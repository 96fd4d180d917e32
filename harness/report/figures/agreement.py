"""Numerical error of each layer against its definition."""

from __future__ import annotations

from collections.abc import Sequence

from vocabench.harness.report.figures._figure import Axis, Figure, Mark, form_of, name_of
from vocabench.harness.report.rows import Record, groups, value_of


def errors(records: Sequence[Record]) -> list[Figure]:
    """Return the largest error of each method against the oracle, in units of its tolerance."""
    nonzero = [r for r in records if r["quantity"] == "agreement_error" and r["value"]]
    figures = []
    for (framework, precision), group in groups(nonzero, "framework", "precision").items():
        ordered = sorted(group, key=value_of, reverse=True)
        outside = [name_of(r) for r in ordered if value_of(r) > 1]
        figures.append(
            Figure(
                "agreement",
                f"Agreement with the float64 definition: {framework}, {precision}",
                "Left of the line: within the tolerance of values, gradients, top-k and training steps.",
                "dots",
                Axis("largest error (1 = the tolerance)", includes=1.0),
                Axis("method"),
                [Mark(form_of(r), value_of(r), 0.0) for r in ordered],
                ("method", "framework", "largest error"),
                [(name_of(r), framework, f"{r['value']:.2g}") for r in ordered],
                f"Outside: {', '.join(outside)}" if outside else "All are within the tolerance.",
                rule=1.0,
            )
        )
    return figures
