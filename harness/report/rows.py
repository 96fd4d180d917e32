"""Stored rows as flat records, one a quantity, with the keys that architecture and tests rely on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness import registry
from harness.cells import variant
from harness.store import Row

KEYS = (
    "suite", "task", "dataset", "framework", "method", "vocab", "dim", "tokens", "device", "precision", "seed",
    "quantity", "value", "unit", "better", "ratio_to_full_softmax", "ratio_low", "ratio_high", "agreement", "status",
    "options", "low", "high", "dataset_sha256", "formulation", "message", "objective",
)  # fmt: skip

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


def flatten(rows: Iterable[Row]) -> list[Record]:
    """One record for each quantity of each row; a row that measured nothing gives one record without a quantity.

    A timing row carries the verdict of the check at its own size. Any other row takes the verdict of the agreement row
    of the same framework, method, options, precision and device, where the run has one.
    """
    rows = list(rows)
    verdicts = {
        _identity(row): row["agreement"]["verdict"]
        for row in rows
        if row["cell"]["task"] == "agreement" and row["agreement"].get("verdict")
    }
    # The agreement cell without options covers the variants too: it checks each choice that changes the arithmetic.
    plain = {key[:-1]: verdict for key, verdict in verdicts.items() if not key[-1]}
    records = []
    for row in rows:
        identity = _identity(row)
        verdict = row["agreement"].get("verdict") or verdicts.get(identity) or plain.get(identity[:-1]) or "unchecked"
        for measurement in row["measurements"] or [{}]:
            records.append(_record(row, measurement, verdict))
    return records


def _identity(row: Row) -> tuple[str, ...]:
    cell = row["cell"]
    return (cell["framework"], cell["method"], cell["precision"], cell["device"], variant(cell["options"]))


def _record(row: Row, measurement: dict[str, Any], verdict: str) -> Record:
    cell, ratio = row["cell"], measurement.get("ratio") or {}
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
    }
