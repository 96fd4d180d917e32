"""Learned clusters and example outputs of stored rows, as Markdown lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vocabench.harness.run.rows import Row


def clusters(rows: Iterable[Row], most: int) -> str:
    """Return the words of up to `most` clusters of each row that learned some, as in table 3 of the SOHSM paper."""
    parts = []
    for row in rows:
        for measurement in row.measurements:
            words_by_cluster = measurement.detail.get("clusters")
            if words_by_cluster:
                lines = [f"{number:3d}  {' '.join(words)}" for number, words in enumerate(words_by_cluster[:most])]
                title = f"### Clusters of {row.cell.framework} {row.cell.method} on {row.cell.dataset}"
                parts.append("\n".join([title, "", *lines, ""]))
    return "\n".join(parts)


def examples(rows: Iterable[Row], most: int) -> str:
    """Return up to `most` sources or utterances with their references and the output of each system.

    This is figure 2 of the SOHSM paper. Only rows whose dataset may be quoted contain examples.
    """
    outputs: dict[tuple[str, str], tuple[dict[str, Any], list[tuple[str, str]]]] = {}
    for row in rows:
        system = f"{row.cell.framework} {row.cell.method}{row.cell.variant}"
        for measurement in row.measurements:
            for example in measurement.detail.get("examples", ()):
                key = row.cell.dataset, example.get("text") or f"{example['id']}, {example['reference']}"
                outputs.setdefault(key, (example, []))[1].append((system, example["ours"]))
    parts = []
    for number, ((dataset, _), (example, systems)) in enumerate(list(outputs.items())[:most], start=1):
        lines = [f"- {label}: {text}" for label, text in (*_inputs(example), *systems)]
        parts.append("\n".join([f"### Example {number} of {dataset}", "", *lines, ""]))
    return "\n".join(parts)


def _inputs(example: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the input of an example and its references."""
    if "text" in example:
        return [("source", example["text"]), *(("reference", summary) for summary in example["summaries"])]
    return [("utterance", f"{example['id']} ({example['language']})"), ("reference", example["reference"])]
