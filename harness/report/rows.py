"""Stored rows as flat records, one for each quantity, with the keys of JSON and CSV tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness import registry
from vocabench.harness.compare.matching import ERROR_RATES, sample_scores
from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.metrics.bootstrap import differences
from vocabench.harness.run.rows import Measurement, Ratio, Row
from vocabench.harness.tasks.shared.paired import BASELINE

KEYS = (
    "suite", "task", "dataset", "framework", "method", "vocab", "dim", "tokens", "device", "precision", "seed",
    "quantity", "value", "unit", "better", "ratio_to_full_softmax", "ratio_low", "ratio_high", "agreement", "status",
    "options", "low", "high", "dataset_sha256", "formulation", "message", "objective", "split", "units", "difference",
    "difference_low", "difference_high", "p_value", "apart",
)  # fmt: skip

# Fields that tables show in a title or a column, next to method, options and framework.
_SHOWN = {
    "timing": ("vocab", "dim", "tokens", "precision", "device"),
    "trained_layer": ("dataset", "vocab", "dim", "tokens", "precision", "device"),
    "agreement": ("precision",),
}
_SHOWN_OF_MODELS = ("dataset", "vocab", "objective", "split", "units")

Record = dict[str, Any]


@dataclass(frozen=True)
class Filter:
    """Selection of the records that a table shows; None selects all."""

    frameworks: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    vocab: Sequence[int] | None = None
    tasks: Sequence[str] | None = None

    def keeps(self, record: Record) -> bool:
        """Return whether all criteria select the record."""
        criteria = (
            (self.frameworks, record["framework"]),
            (self.methods, record["method"]),
            (self.vocab, record["vocab"]),
            (self.tasks, record["task"]),
        )
        return all(allowed is None or value in allowed for allowed, value in criteria)


def groups(records: Iterable[Record], *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    """Return the records by their values of `keys`, in order of appearance."""
    grouped: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        grouped.setdefault(tuple(record[key] for key in keys), []).append(record)
    return grouped


def flatten(rows: Iterable[Row]) -> list[Record]:
    """Return a record for each quantity of each row; a row without measurements gives one record without a quantity.

    A timing row has the verdict of a check at its own size. Other rows take the verdict of the agreement row with the
    same framework, method, options, precision and device, if the run has one.
    """
    rows = list(rows)
    verdicts: dict[tuple[str, ...], str] = {}
    for row in rows:
        verdict = row.verdict if row.cell.task == "agreement" else ""
        if verdict and verdicts.get(_identity(row)) != DISAGREE:  # one seed or size that disagrees is decisive
            verdicts[_identity(row)] = verdict
    # The agreement cell without options also covers the variants: it checks all choices that change the arithmetic.
    plain = {key[:-1]: verdict for key, verdict in verdicts.items() if not key[-1]}
    baselines = {trial(row): row for row in rows if row.cell.method == BASELINE}
    records = []
    for row, apart in zip(rows, set_apart(rows), strict=True):
        identity = _identity(row)
        verdict = row.verdict or verdicts.get(identity) or plain.get(identity[:-1]) or "unchecked"
        for measurement in row.measurements or [None]:
            record = _record(row, measurement, verdict) | {"apart": apart}
            records.append(record | _difference(measurement, baselines.get(trial(row))))
    return records


def set_apart(rows: Sequence[Row]) -> list[str]:
    """Return for each row what distinguishes it from other rows on the same line of the same table, such as "seed 1".

    Empty for a row that is alone on its line, and for a row without measurements.
    """
    fields = [{**row.cell.settings, **row.cell.to_json()} for row in rows]
    lines: dict[str, list[int]] = {}
    for number, (row, cell) in enumerate(zip(rows, fields, strict=True)):
        if row.measurements:
            names = ("task", "framework", "method", "options", *_SHOWN.get(cell["task"], _SHOWN_OF_MODELS))
            lines.setdefault(json.dumps([cell.get(name) for name in names], sort_keys=True), []).append(number)
    labels = [""] * len(rows)
    for line in lines.values():
        names = dict.fromkeys(name for number in line for name in fields[number] if name != "settings")
        differ = [name for name in names if len({json.dumps(fields[number].get(name)) for number in line}) > 1]
        for number in line:
            labels[number] = ", ".join(f"{name} {_brief(fields[number].get(name))}" for name in differ)
    return labels


def _brief(value: Any) -> str:
    text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _identity(row: Row) -> tuple[str, ...]:
    cell = row.cell
    return (cell.framework, cell.method, cell.precision, cell.device, cell.variant)


def trial(row: Row) -> str:
    """Return all fields of a cell but its method and options, which two systems must share for a paired comparison."""
    return json.dumps({**row.cell.to_json(), "method": "", "options": {}}, sort_keys=True)


def _difference(measurement: Measurement | None, baseline: Row | None) -> Record:
    """Return the difference of a score to that of full softmax on the same samples, by the paired bootstrap."""
    if measurement is None or baseline is None:
        return {}
    quantity = measurement.quantity
    if not quantity.startswith("rouge") and quantity not in ERROR_RATES:
        return {}
    baseline_measurements = [m for m in baseline.measurements if m.quantity == quantity]
    if not baseline_measurements:
        return {}
    scores, baseline_scores = sample_scores(measurement), sample_scores(baseline_measurements[0])
    if not scores.pair_with(baseline_scores):
        return {}
    (difference,) = differences(scores.values_S[:, None], baseline_scores.values_S[:, None], sizes_S=scores.sizes_S)
    interval = difference.interval
    return {
        "difference": interval.value,
        "difference_low": interval.low,
        "difference_high": interval.high,
        "p_value": difference.p_value,
    }


def _record(row: Row, measurement: Measurement | None, verdict: str) -> Record:
    cell = row.cell
    fields = {name: value for name, value in cell.to_json().items() if name in KEYS}
    return {
        **dict.fromkeys(KEYS),
        **fields,
        **(_figure(measurement) if measurement is not None else {}),
        "agreement": verdict if cell.method in registry.methods() else "none",  # a model without a layer
        "status": row.status,
        "options": cell.variant,
        "message": row.message,
        "objective": cell.settings.get("objective", ""),
        "split": cell.settings.get("split", ""),
        "units": cell.settings.get("units", ""),
    }


def _figure(measurement: Measurement) -> Record:
    ratio = measurement.ratio
    if ratio is None or None in (ratio.value, ratio.low, ratio.high):
        ratio = Ratio()  # a ratio is shown only with its interval
    return {
        "quantity": measurement.quantity,
        "value": measurement.finite_value,
        "unit": measurement.unit,
        "better": measurement.better,
        "ratio_to_full_softmax": ratio.value,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "low": measurement.low,
        "high": measurement.high,
        "formulation": measurement.detail.get("formulation"),
    }
