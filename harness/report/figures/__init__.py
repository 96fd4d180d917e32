"""The figures of the report: what its script draws of stored rows, each with a table of its values."""

from __future__ import annotations

from collections.abc import Sequence

from vocabench.harness.report.conditions import conditions
from vocabench.harness.report.figures import agreement, lengths, quality, roofline, sizes, training, word_vectors
from vocabench.harness.report.figures._figure import Axis, Figure, Form, Mark, name_of
from vocabench.harness.report.over_seeds import combined
from vocabench.harness.report.rows import Record
from vocabench.harness.run.rows import Row

__all__ = ["SECTIONS", "Axis", "Figure", "Form", "Mark", "all_of", "name_of"]

SECTIONS = ("speed", "quality", "memory", "training", "roofline", "decoding", "agreement")


def all_of(rows: Sequence[Row], records: Sequence[Record]) -> list[Figure]:
    """Return all figures for which the rows of a machine have values, those with most marks first in each section."""
    over_seeds = combined(records)
    figures = [
        *sizes.speed(records),
        *quality.trade_offs(over_seeds, conditions(rows, records)),
        *word_vectors.accuracies(over_seeds),
        *word_vectors.factorisations(over_seeds),
        *sizes.memory(records),
        *training.curves(rows),
        *roofline.achieved(records),
        *lengths.gains(rows, records),
        *agreement.errors(records),
    ]
    return sorted(figures, key=lambda figure: -len(figure.forms))
