"""Stored rows as flat records, one a quantity, with the keys that architecture and tests rely on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness import registry
from vocabench.harness.compare.matching import ERROR_RATES, sample_scores
from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.metrics.bootstrap import differences
from vocabench.harness.run.cells import variant
from vocabench.harness.run.store import Row
from vocabench.harness.tasks.shared.paired import BASELINE

KEYS = (
    "suite", "task", "dataset", "framework", "method", "vocab", "dim", "tokens", "device", "precision", "seed",
    "quantity", "value", "unit", "better", "ratio_to_full_softmax", "ratio_low", "ratio_high", "agreement", "status",
    "options", "low", "high", "dataset_sha256", "formulation", "message", "objective", "split", "units", "difference",
    "difference_low", "difference_high", "p_value", "apart",
)  # fmt: skip

# What tables tell apart by a title or a column of its own, next to method, options and framework.
_SHOWN = {
    "timing": ("vocab", "dim", "tokens", "precision", "device"),
    "trained_layer": ("dataset", "vocab", "dim", "tokens", "precision", "device"),
    "agreement": ("precision",),
}
_SHOWN_OF_MODELS = ("dataset", "vocab", "objective", "split", "units")

Record = dict[str, Any]


@dataclass(frozen=True)
class Filter:
    """What a table shows; None shows all."""

    frameworks: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    vocab: Sequence[int] | None = None
    tasks: Sequence[str] | None = None

    def keeps(self, record: Record) -> bool:
        pairs = (
            (self.frameworks, record["framework"]),
            (self.methods, record["method"]),
            (self.vocab, record["vocab"]),
            (self.tasks, record["task"]),
        )
        return all(allowed is None or value in allowed for allowed, value in pairs)


def groups(records: Iterable[Record], *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    """Records with the same values of `keys`, in the order in which they come."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(record[key] for key in keys), []).append(record)
    return found


def flatten(rows: Iterable[Row]) -> list[Record]:
    """One record for each quantity of each row; a row that measured nothing gives one record without a quantity.

    A timing row carries the verdict of the check at its own size. Any other row takes the verdict of the agreement row
    of the same framework, method, options, precision and device, where the run has one.
    """
    rows = list(rows)
    verdicts: dict[tuple[str, ...], str] = {}
    for row in rows:
        found = row.get("agreement", {}).get("verdict") if row["cell"]["task"] == "agreement" else None
        if found and verdicts.get(_identity(row)) != DISAGREE:  # of several seeds and sizes, one that disagrees decides
            verdicts[_identity(row)] = found
    # The agreement cell without options covers the variants too: it checks each choice that changes the arithmetic.
    plain = {key[:-1]: verdict for key, verdict in verdicts.items() if not key[-1]}
    baselines = {trial(row): row for row in rows if row["cell"]["method"] == BASELINE}
    records = []
    for row, apart in zip(rows, set_apart(rows), strict=True):
        identity = _identity(row)
        verdict = (
            row.get("agreement", {}).get("verdict") or verdicts.get(identity) or plain.get(identity[:-1]) or "unchecked"
        )
        for measurement in row["measurements"] or [{}]:
            record = _record(row, measurement, verdict) | {"apart": apart}
            records.append(record | _difference(measurement, baselines.get(trial(row))))
    return records


def set_apart(rows: Sequence[Row]) -> list[str]:
    """What sets each measured row apart from others that would stand on the same line of the same table, such as
    "seed 1"; nothing where there is no other."""
    fields = [{**row["cell"]["settings"], **row["cell"]} for row in rows]
    lines: dict[str, list[int]] = {}
    for number, (row, cell) in enumerate(zip(rows, fields, strict=True)):
        if row["measurements"]:
            names = ("task", "framework", "method", "options", *_SHOWN.get(cell["task"], _SHOWN_OF_MODELS))
            lines.setdefault(json.dumps([cell.get(name) for name in names], sort_keys=True), []).append(number)
    found = [""] * len(rows)
    for line in lines.values():
        names = dict.fromkeys(name for number in line for name in fields[number] if name != "settings")
        differ = [name for name in names if len({json.dumps(fields[number].get(name)) for number in line}) > 1]
        for number in line:
            found[number] = ", ".join(f"{name} {_brief(fields[number].get(name))}" for name in differ)
    return found


def _brief(value: Any) -> str:
    text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _identity(row: Row) -> tuple[str, ...]:
    cell = row["cell"]
    return (cell["framework"], cell["method"], cell["precision"], cell["device"], variant(cell["options"]))


def trial(row: Row) -> str:
    """All of a cell but its method: what two systems must share to be compared sample by sample."""
    return json.dumps({**row["cell"], "method": "", "options": {}}, sort_keys=True)


def _difference(measurement: dict[str, Any], baseline: Row | None) -> Record:
    """How much higher a score is than full softmax's on the same samples, by the paired bootstrap."""
    quantity = measurement.get("quantity", "")
    if (not quantity.startswith("rouge") and quantity not in ERROR_RATES) or baseline is None:
        return {}
    others = [m for m in baseline["measurements"] if m["quantity"] == quantity]
    if not others:
        return {}
    own, other = sample_scores(measurement), sample_scores(others[0])
    if not own.pair_with(other):
        return {}
    (found,) = differences(own.values_S[:, None], other.values_S[:, None], sizes_S=own.sizes_S)
    interval = found.interval
    return {
        "difference": interval.value,
        "difference_low": interval.low,
        "difference_high": interval.high,
        "p_value": found.p_value,
    }


def _record(row: Row, measurement: dict[str, Any], verdict: str) -> Record:
    cell, ratio = row["cell"], measurement.get("ratio") or {}
    if None in map(ratio.get, ("value", "low", "high")):
        ratio = {}  # a ratio is given with its interval, or not at all
    fields = {name: cell[name] for name in KEYS if name in cell and name not in ("options",)}
    return {
        **dict.fromkeys(KEYS),
        **fields,
        "quantity": measurement.get("quantity"),
        "value": measurement.get("value"),
        "unit": measurement.get("unit"),
        "better": measurement.get("better"),
        "ratio_to_full_softmax": ratio.get("value"),
        "ratio_low": ratio.get("low"),
        "ratio_high": ratio.get("high"),
        "agreement": verdict if cell["method"] in registry.methods() else "none",  # a model without a layer
        "status": row["status"],
        "options": variant(cell["options"]),
        "low": measurement.get("low"),
        "high": measurement.get("high"),
        "formulation": measurement.get("detail", {}).get("formulation"),
        "message": row.get("message", ""),
        "objective": cell["settings"].get("objective", ""),
        "split": cell["settings"].get("split", ""),
        "units": cell["settings"].get("units", ""),
    }
