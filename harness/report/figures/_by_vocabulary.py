"""Records of the timing task by size of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vocabench.harness.report.figures._figure import name_of
from vocabench.harness.report.rows import Record, groups


def by_vocabulary(
    records: Sequence[Record], quantity: str
) -> Iterator[tuple[tuple[Any, ...], dict[str, list[Record]]]]:
    """Yield each setting of the timing task with the records of its methods, by increasing size.

    A size that was measured repeatedly, such as with other numbers of rounds, has its last record.
    """
    timed = [
        r
        for r in records
        if r["task"] == "timing" and r["quantity"] == quantity and r["value"] is not None and r["vocab"]
    ]
    for key, group in groups(timed, "framework", "dim", "tokens", "precision", "device").items():
        lines: dict[str, dict[int, Record]] = {}
        for record in sorted(group, key=lambda record: record["vocab"]):
            lines.setdefault(name_of(record), {})[record["vocab"]] = record
        yield key, {name: list(by_size.values()) for name, by_size in lines.items()}


def setting(key: tuple[Any, ...]) -> str:
    """Return the description of a setting."""
    framework, dim, tokens, precision, device = key
    return f"{framework}, N={tokens:,}, D={dim}, {precision}, {device}"
