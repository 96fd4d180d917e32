"""The figures of the report: drawings of stored rows, each with a table of its values."""

from __future__ import annotations

from collections.abc import Sequence

from vocabench.harness.report import svg
from vocabench.harness.report.figures import agreement, lengths, quality, roofline, sizes, training
from vocabench.harness.report.figures._figure import Figure, name_of
from vocabench.harness.report.over_seeds import combined
from vocabench.harness.report.rows import Record
from vocabench.harness.run.rows import Row

__all__ = ["Figure", "all_of", "name_of"]


def all_of(rows: Sequence[Row], records: Sequence[Record]) -> list[Figure]:
    """Return all figures for which the rows have values."""
    looks = svg.style([name_of(record) for record in records if record["quantity"] != "agreement_error"])
    return [
        *sizes.speed(records, looks),
        *roofline.achieved(records, looks),
        *lengths.gains(rows, records, looks),
        *sizes.memory(records, looks),
        *quality.trade_offs(combined(records), looks),
        *training.curves(rows, looks),
        *agreement.errors(records),
    ]
