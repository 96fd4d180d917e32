"""Machines that rows were measured on, so that a page keeps their figures apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vocabench.harness.run.rows import Row

UNKNOWN = "unknown machine"


def machine_of(row: Row) -> str:
    """Return the name of the processor or accelerator that a row was measured on, with the number of its cores."""
    machine, framework = row.provenance.machine, row.provenance.framework
    cpu = _plain(machine.get("cpu"))
    accelerator = _plain(framework.get("device_name")) if row.cell.device not in ("", "cpu") else ""
    if not (cpu or accelerator):
        return UNKNOWN
    cores = machine.get("cores")
    processor = f"{cpu}, {cores} cores" if cpu and cores else cpu
    return accelerator or processor


def description(rows: Sequence[Row]) -> str:
    """Return what is known of the machine of these rows: processor, cores, instruction sets, memory and system."""
    machine = rows[0].provenance.machine
    parts = [machine_of(rows[0])]
    if parts[0] == UNKNOWN:
        return UNKNOWN
    if rows[0].cell.device not in ("", "cpu") and machine.get("cpu"):
        parts.append(f"host {_plain(machine['cpu'])}, {machine.get('cores', '?')} cores")
    sets = machine.get("instruction_sets")
    if isinstance(sets, list) and sets:
        parts.append(", ".join(map(_plain, sets)))
    memory = machine.get("memory_bytes")
    if isinstance(memory, int | float):
        parts.append(f"{memory / 2**30:.0f} GiB of memory")
    if machine.get("system"):
        parts.append(str(machine["system"]))
    return "; ".join(parts)


def by_machine(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each machine, the machine with most rows first."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(machine_of(row), []).append(row)
    return dict(sorted(grouped.items(), key=lambda group: -len(group[1])))


def latest_by_machine(rows: Iterable[Row]) -> list[Row]:
    """Return the last row of each cell on each machine."""
    return list({(row.key, machine_of(row)): row for row in rows}.values())


def of_all(mappings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields that have the same value in all mappings."""
    found = list(mappings)
    first = found[0] if found else {}
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in found)}


def _plain(value: Any) -> str:
    """Return a name without trademarks."""
    return re.sub(r"\((R|TM)\)", "", str(value or "")).strip()
