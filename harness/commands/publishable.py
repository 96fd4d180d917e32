"""The part of a row that may be published: no quoted data that may not be passed on, and no paths."""

from __future__ import annotations

import dataclasses
from typing import Any

from vocabench.harness import registry
from vocabench.harness.run import portable
from vocabench.harness.run.rows import Measurement, Row

QUOTATIONS = ("summaries", "examples", "transcripts", "ids", "clusters")  # details that quote the data

_FREE_DATASETS = ("pydoc", "spoken")  # prefixes of datasets built from data that may be passed on


def without_quotations(row: Row) -> Row:
    """Return the row without details that quote its data, unless the data may be passed on."""
    if _may_be_quoted(row.cell.dataset):
        return row
    return dataclasses.replace(row, measurements=[_without_quotations(measurement) for measurement in row.measurements])


def without_paths(row: Row) -> Row:
    """Return the row with paths reduced to file names."""
    cell = portable.by_name(row.cell)
    return row if cell == row.cell else dataclasses.replace(row, cell=cell, key=cell.key)


def _may_be_quoted(dataset: str) -> bool:
    return not dataset or (dataset in registry.datasets() and dataset.startswith(_FREE_DATASETS))


def _without_quotations(measurement: Measurement) -> Measurement:
    ratio = measurement.ratio
    return dataclasses.replace(
        measurement,
        detail=_unquoted(measurement.detail),
        ratio=ratio and dataclasses.replace(ratio, extra=_unquoted(ratio.extra)),
        extra=_unquoted(measurement.extra),
    )


def _unquoted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unquoted(item) for name, item in value.items() if name not in QUOTATIONS}
    if isinstance(value, list):
        return [_unquoted(item) for item in value]
    return value
