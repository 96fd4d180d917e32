"""`vocabench compare`: whether a run is worse than another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from vocabench.harness import registry
from vocabench.harness.commands.table import say
from vocabench.harness.compare import gate, matching
from vocabench.harness.compare.gate import Finding, Limits
from vocabench.harness.run import results_files
from vocabench.harness.run.store import OtherSchema, Row
from vocabench.impls.errors import BadInput, unknown

FORMATS = ("markdown", "json")

_EXIT = {gate.SAME_OR_BETTER: 0, gate.WORSE: 1, gate.NOT_COMPARABLE: 3}


def compare(
    before: str, after: str, *, frameworks: str | None, limits: Limits, strict: bool, form: str, out: str | None
) -> int:
    """Returns 0 for the same or better, 1 for worse, 3 where nothing could be compared."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    for name, value in (("--threshold", limits.cost), ("--quality-threshold", limits.quality)):
        if not 0 <= value < 1:
            raise BadInput(f"{name} {value:g}: allowed: a share from 0 to below 1, such as 0.05")
    pair = _pair(frameworks)
    try:
        old, new = _rows(Path(before)), _rows(Path(after))
    except OtherSchema as error:
        print(f"not comparable: {error}")
        return _EXIT[gate.NOT_COMPARABLE]
    found = gate.between_frameworks(old, new, *pair, limits) if pair else gate.compare(old, new, limits)
    outcome = gate.verdict(found, strict=strict)
    text = _json(found, outcome, limits) if form == "json" else _markdown(found, outcome)
    say(text, out)
    return _EXIT[outcome]


def _pair(frameworks: str | None) -> tuple[str, str] | None:
    if frameworks is None:
        return None
    names = frameworks.split(",")
    for name in names:
        if name not in registry.frameworks():
            raise unknown("framework", name, registry.frameworks())
    if len(names) != 2 or names[0] == names[1]:
        raise BadInput(f"--frameworks {frameworks}: allowed: two of them, such as jax,torch")
    return names[0], names[1]


def _rows(path: Path) -> list[Row]:
    """Of a results file; of a folder, those of every results file in it, as several runs of the same code."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise BadInput(f"folder {path}: no results file: allowed: at least one .jsonl file")
    found = [row for each in files for row in results_files.rows(each)]
    if reason := matching.mixed(found):
        raise BadInput(f"{path}: {reason}: allowed: runs of the same code and definitions")
    return found


def summary(found: Sequence[Finding], outcome: str) -> str:
    counts = {name: sum(each.verdict == name for each in found) for name in gate.VERDICTS}
    return f"{outcome}: " + (
        ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing shared"
    )


def _json(found: Sequence[Finding], outcome: str, limits: Limits) -> str:
    content = {
        "verdict": outcome,
        "summary": summary(found, outcome),
        "limits": asdict(limits),
        "findings": [asdict(each) for each in found],
    }
    return json.dumps(content, indent=1) + "\n"


def _markdown(found: Sequence[Finding], outcome: str) -> str:
    import pandas as pd

    from vocabench.harness.report.table import markdown

    table = pd.DataFrame(
        {
            "verdict": [each.verdict for each in found],
            "cell": [each.cell for each in found],
            "quantity": [each.quantity for each in found],
            "before": [_figure(each, each.before) for each in found],
            "after": [_figure(each, each.after) for each in found],
            "change": [_percent(each.change) for each in found],
            "interval": [_interval(each) for each in found],
            "must exceed": ["" if each.bar is None else f"{100 * each.bar:.1f} %" for each in found],
            "reason": [each.reason for each in found],
        }
    )
    return (f"{markdown(table)}\n\n" if found else "") + summary(found, outcome) + "\n"


def _figure(found: Finding, value: float | None) -> str:
    from vocabench.harness.report.table import seconds, size

    if value is None:
        return ""
    if found.unit in ("s", "B"):
        return seconds(value) if found.unit == "s" else size(value)
    return f"{value:.4g}{gate.RATIO if found.unit == gate.RATIO else ''}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


def _interval(found: Finding) -> str:
    return "" if found.low is None else f"[{_percent(found.low)}, {_percent(found.high)}]"
