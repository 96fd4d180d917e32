"""Where rows come from: once for what all of them share, and a line for each combination of what differs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vocabench.harness.report.machines import description, machine_of, of_all
from vocabench.harness.run.rows import Row


class Origins(NamedTuple):
    """Origins of rows.

    Attributes:
        shared: Names and texts of what all rows have in common, and of the settings that all rows of a task share.
        columns, lines: What differs, a line for each combination of it.
    """

    shared: Sequence[tuple[str, str]]
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


def origins(rows: Sequence[Row]) -> Origins:
    """Return the origins of rows."""
    settings: dict[str, dict[str, Any]] = {}
    for row in rows:
        common = settings.get(row.cell.task)
        own = row.cell.settings
        settings[row.cell.task] = dict(own) if common is None else of_all([common, own])
    by_machine = {machine_of(row): row for row in rows}
    machines = {name: description([row]) for name, row in by_machine.items()}
    versions = of_all(row.provenance.versions for row in rows)
    fields = [_fields(row, settings[row.cell.task], versions, machines) for row in rows]
    equal = of_all(fields)
    shared = [(name, text) for name, text in equal.items() if text]
    if versions:
        shared.append(("versions of all", _pairs(versions)))
    shared += [(f"settings of {task.replace('_', ' ')}", _pairs(common)) for task, common in settings.items() if common]
    groups: dict[str, list[int]] = {}
    differing = [name for name in (fields[0] if fields else ()) if name not in equal]
    for number, row in enumerate(rows):
        key = [row.cell.task, row.cell.framework, *(fields[number][name] for name in differing)]
        groups.setdefault(json.dumps(key), []).append(number)
    lines = []
    for key, members in groups.items():
        started = sorted(rows[n].provenance.started for n in members if rows[n].provenance.started)
        days = list(dict.fromkeys(moment[:16].replace("T", " ") for moment in (started[:1] + started[-1:])))
        duration = sum(rows[n].provenance.seconds or 0.0 for n in members)
        lines.append([*json.loads(key), f"{len(members):,}", " to ".join(days), f"{duration:,.0f} s"])
    return Origins(shared, ("task", "framework", *differing, "cells", "started", "duration"), lines)


def _fields(
    row: Row, common: Mapping[str, Any], versions: Mapping[str, Any], machines: Mapping[str, str]
) -> dict[str, str]:
    origin = row.provenance
    code, data = origin.code, origin.data
    changed = " (changed)" if code.get("dirty") else ""
    own_versions = {name: value for name, value in origin.versions.items() if name not in versions}
    own_settings = {name: value for name, value in row.cell.settings.items() if name not in common}
    return {
        "code": f"{str(code.get('commit') or '')[:12]}{changed}" or str(code.get("fingerprint", "")),
        "machine": machines[machine_of(row)],
        "python": str(origin.machine.get("python", "")),
        "versions": _pairs({**origin.framework, **own_versions}),
        "text": f"{data.get('dataset', '')} {str(data.get('sha256', ''))[:12]}".strip(),
        "settings": _pairs(own_settings),
    }


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
