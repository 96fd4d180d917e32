"""The central figure of a row, in one line, as a run shows it when a cell ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vocabench.harness.report import units
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Row

# The quantities that say most about a task, with their names in the line; the first figures that a row has are shown.
_CENTRAL = {
    "agreement_error": "largest error",
    "layer_seconds": "layer",
    "trained_layer_seconds": "layer",
    "cer": "CER",
    "per": "PER",
    "rougeL_f1": "ROUGE-L",
    "triplet_accuracy": "triplets",
    "perplexity": "perplexity",
    "analogy_accuracy": "analogies",
    "glove_loss": "loss",
    "topk_seconds": "top-10",
    "step_seconds": "whole model",
}
_BY_TASK = {
    "timing": ("layer_seconds", "step_seconds", "topk_seconds"),
    "parallel": ("layer_seconds", "topk_seconds"),
    "trained_layer": ("trained_layer_seconds", "topk_seconds"),
    "word_vectors": ("perplexity", "analogy_accuracy", "glove_loss"),
}
_SHARES = ("cer", "per", "rougeL_f1", "triplet_accuracy", "analogy_accuracy")


def headline(row: Row) -> str:
    """Return the cell and its central figure, such as "huffman torch 44,000: layer 113.5x, 3.22 ms"."""
    return f"{brief_label(row.cell)}: {figure(row)}"


def brief_label(cell: Cell) -> str:
    """Return the part of a cell's label that tells it from most others of its run."""
    parts = [f"{cell.method}{cell.variant}", cell.framework]
    if cell.dataset:
        parts.append(cell.dataset)
    if cell.vocab:
        parts.append(f"{cell.vocab:,}")
    if cell.precision != "float32":
        parts.append(cell.precision)
    if cell.seed:
        parts.append(f"seed {cell.seed}")
    return " ".join(parts)


def figure(row: Row) -> str:
    """Return the central figure of a row with its quantity; its status and message if it was not measured."""
    if not row.is_measured:
        return f"{row.status}: {row.message}" if row.message else row.status
    shown = _shown(row)
    if row.cell.task == "agreement" or not row.agrees:
        return ", ".join(["agrees" if row.agrees else "DISAGREES", *shown])
    return ", ".join(shown) or row.status


def _shown(row: Row) -> list[str]:
    by_quantity = {measurement.quantity: measurement for measurement in row.measurements}
    wanted: Sequence[str] = _BY_TASK.get(row.cell.task, tuple(_CENTRAL))
    names = [name for name in wanted if name in by_quantity][:2]
    if row.cell.task != "word_vectors":
        names = names[:1]
    if not names and row.measurements:
        first = row.measurements[0]
        return [f"{first.quantity} {_value(first)}"]
    return [f"{_CENTRAL[name]} {_value(by_quantity[name])}" for name in names]


def _value(measurement: Measurement) -> str:
    value, quantity = measurement.value, measurement.quantity
    if not math.isfinite(value):
        return "not finite"
    if measurement.unit == "s":
        ratio = measurement.ratio.value if measurement.ratio is not None else None
        return f"{'' if ratio is None else f'{units.ratio(ratio)}x, '}{units.seconds(value)}"
    if quantity == "agreement_error":
        return f"{value:.2g} of the tolerance"
    if quantity in _SHARES:
        return f"{100 * value:.2f} %"
    return units.size(value) if measurement.unit == "B" else f"{value:.4g}"
