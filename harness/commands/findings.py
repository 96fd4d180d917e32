"""Findings of the gate as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from vocabench.harness.compare import gate
from vocabench.harness.compare.gate import Finding, Limits
from vocabench.harness.report.formats import markdown
from vocabench.harness.report.units import seconds, size


def summary(findings: Sequence[Finding], verdict: str) -> str:
    """Return the verdict and the number of findings of each kind, in one line."""
    counts = {name: sum(finding.verdict == name for finding in findings) for name in gate.VERDICTS}
    text = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{verdict}: {text or 'nothing shared'}"


def as_json(findings: Sequence[Finding], verdict: str, limits: Limits) -> str:
    content = {
        "verdict": verdict,
        "summary": summary(findings, verdict),
        "limits": asdict(limits),
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(content, indent=1) + "\n"


def as_markdown(findings: Sequence[Finding], verdict: str, limits: Limits) -> str:
    """Return a table of the findings with the summary below it. The limits are not shown."""
    table = pd.DataFrame(
        {
            "verdict": [finding.verdict for finding in findings],
            "cell": [finding.cell for finding in findings],
            "quantity": [finding.quantity for finding in findings],
            "before": [_figure(finding, finding.before) for finding in findings],
            "after": [_figure(finding, finding.after) for finding in findings],
            "change": [_percent(finding.change) for finding in findings],
            "interval": [_interval(finding) for finding in findings],
            "detectable": [_detectable(finding) for finding in findings],
            "reason": [finding.reason for finding in findings],
        }
    )
    return (f"{markdown(table)}\n\n" if findings else "") + summary(findings, verdict) + "\n"


def _figure(finding: Finding, value: float | None) -> str:
    if value is None:
        return ""
    if finding.unit in ("s", "B"):
        return seconds(value) if finding.unit == "s" else size(value)
    return f"{value:.4g}{gate.RATIO if finding.unit == gate.RATIO else ''}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


def _detectable(finding: Finding) -> str:
    return "" if finding.detectable is None else f"{100 * finding.detectable:.0f} %"


def _interval(finding: Finding) -> str:
    return "" if finding.low is None else f"[{_percent(finding.low)}, {_percent(finding.high)}]"
