"""asv's results format, version 2, written without asv: rows made where it does not run become part of its history.

Below the results folder there is `benchmarks.json`, what is measured; in a folder a machine `machine.json`, and a file
a commit and environment with columns of each benchmark: a list over the product of its parameters.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from vocabench.harness.compare import history, matching
from vocabench.harness.run import portable
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.store import Row
from vocabench.impls.errors import BadInput

_RESULTS, _MACHINE = 2, 1  # versions of the format
_PARAMETERS = ("framework", "method", "cell")
_PER_CELL = (
    "result", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25", "stats_q_75", "stats_number", "stats_repeat", "samples",
)  # fmt: skip
_COLUMNS = ("params", "version", *_PER_CELL)

Parameters = tuple[str, ...]  # of one figure, as Python writes them: asv's own form
Columns = dict[str, dict[Parameters, dict[str, Any]]]  # by benchmark; "version" is the figure's definition, a number


@dataclass(frozen=True)
class Origin:
    """What a results file is of.

    Attributes:
        date: When the commit was made, in milliseconds.
        machine: The contents of `machine.json`.
    """

    commit: str
    date: int
    machine: Mapping[str, str]
    python: str
    framework: str
    framework_version: str
    threads: str

    @property
    def environment(self) -> str:
        name = f"rows-py{self.python}-{self.framework}{self.framework_version}"
        return _file_name(f"{name}-{self.threads}threads" if self.threads else name)

    def path(self, folder: Path) -> Path:
        return folder / self.machine["machine"] / f"{self.commit[:8]}-{self.environment}.json"


def origin(row: Row, date: int, machine_name: str | None) -> Origin:
    """
    Args:
        machine_name: Its folder; None makes one of the processor, the cores and the GPU.
    """
    cell = Cell.from_json(row["cell"])
    found, made = provenance(row, "machine"), provenance(row, "framework")
    gpu = "" if cell.device == "cpu" else str(made.get("device_name", ""))
    name = machine_name or _file_name(" ".join(filter(None, [gpu, f"{found.get('cpu')} {found.get('cores')} cores"])))
    machine = {
        "machine": name,
        "os": str(found.get("system", "")),
        "arch": "" if gpu else str(made.get("device_name", "")),
        "cpu": str(found.get("cpu", "")),
        "num_cpu": str(found.get("cores", "")),
        "ram": str(found.get("memory_bytes", "")),
        "gpu": gpu,
    }
    return Origin(
        commit=provenance(row, "code")["commit"],
        date=date,
        machine=machine,
        python=".".join(str(found.get("python", "")).split(".")[:2]),
        framework=cell.framework,
        framework_version=str(made.get(cell.framework, "")),
        threads=str(made.get("threads", "")),
    )


def provenance(row: Row, room: str) -> dict[str, Any]:
    """What the row says of its code, machine or framework; empty where it says nothing."""
    found = row["provenance"].get(room)
    return found if isinstance(found, dict) else {}


def name_of(cell: Cell) -> str:
    """What asv calls a cell next to its framework and method: all that makes it another measurement."""
    usual = matching.default_settings(cell.task)
    parts = [f"{cell.dataset}@{cell.dataset_sha256[:8]}" if cell.dataset else ""]
    parts += [f"V={cell.vocab:,}" if cell.vocab else "", f"D={cell.dim} N={cell.tokens}", cell.precision, cell.device]
    parts += [f"seed={cell.seed}" if cell.seed else ""]
    for name, value in cell.settings.items():
        if matching.distinguishes(cell.task, name) and not (name in usual and value == _plain(usual[name])):
            parts.append(f"{name}={'+'.join(map(str, value)) if isinstance(value, list) else value}")
    return " ".join(filter(None, parts))


def write(folder: Path, found: Iterable[tuple[Origin, Row]]) -> list[Path]:
    """Every figure of the rows, next to what the files hold already; the same figure takes the old one's place.

    The version of a benchmark is the newest definition that its figures were measured by. asv compares none of an
    earlier version; where a file has both, the earlier are left out.

    Returns:
        The results files.

    Raises:
        BadInput: A file that is there is not one of asv's, or describes another machine by the same name.
    """
    files: dict[Path, tuple[Origin, Columns]] = {}
    machines: dict[Path, Mapping[str, str]] = {}
    for source, row in found:
        path = source.path(folder)
        place = path.parent / "machine.json"
        known = machines.setdefault(place, _load(place) or source.machine)
        _check_machine(place, known, source.machine)
        if path not in files:
            files[path] = source, _read(path)
        cell = Cell.from_json(portable.by_name(row["cell"]))
        parameters = tuple(map(repr, (cell.framework, cell.method + cell.variant, name_of(cell))))
        for name, samples in history.figures(row).items():
            cells = files[path][1].setdefault(f"{cell.task}.{name}", {})
            columns = _columns(samples) | {"version": history.definition(row, name)}
            if columns["version"] >= cells.get(parameters, columns)["version"]:
                cells[parameters] = columns
    benchmarks = _benchmarks(folder / "benchmarks.json", [columns for _, columns in files.values()])
    for path, (source, columns) in files.items():
        _write(path, _results(source, columns), compact=True)
    for place, machine in machines.items():
        _write(place, {**machine, "version": _MACHINE})
    _write(folder / "benchmarks.json", benchmarks)
    return list(files)


def _columns(samples: list[float]) -> dict[str, Any]:
    """As asv computes them: the median, its 99 % interval by order statistics, the quartiles."""
    rising, count = sorted(samples), len(samples)
    low, median, high = np.quantile(rising, (0.25, 0.5, 0.75)).tolist()
    cut = int(np.sum(binom.cdf(np.arange(count), count, 0.5) <= 0.005))
    bounds = (rising[cut - 1], rising[-cut]) if cut else (-np.inf, np.inf)
    return dict(zip(_PER_CELL, (median, *bounds, low, high, 1, count, samples), strict=True))


def _results(source: Origin, columns: Columns) -> dict[str, Any]:
    requirements = {source.framework: source.framework_version}
    return {
        "commit_hash": source.commit,
        "env_name": source.environment,
        "date": source.date,
        "params": {**source.machine, "python": source.python, **requirements, "threads": source.threads},
        "python": source.python,
        "requirements": requirements,
        "env_vars": {},
        "result_columns": list(_COLUMNS),
        "results": {name: _table(cells) for name, cells in sorted(columns.items())},
        "durations": {},
        "version": _RESULTS,
    }


def _table(cells: Mapping[Parameters, dict[str, Any]]) -> list[Any]:
    """One benchmark's columns over the product of its parameters; null where there is no figure."""
    version = _newest(cells)
    cells = {point: cell for point, cell in cells.items() if cell["version"] == version}
    parameters = _axes(cells)
    whole = {"params": parameters, "version": str(version)}
    missing = {"result": np.nan}  # asv's "skipped"; null would be "failed"
    each = [cells.get(point, missing) for point in itertools.product(*parameters)]
    return [whole[name] if name in whole else [cell.get(name) for cell in each] for name in _COLUMNS]


def _newest(cells: Mapping[Parameters, dict[str, Any]]) -> int:
    return max(cell["version"] for cell in cells.values())


def _axes(points: Iterable[Parameters]) -> list[list[str]]:
    return [list(dict.fromkeys(values)) for values in zip(*sorted(points), strict=True)]


def _read(path: Path) -> Columns:
    content = _load(path)
    found: Columns = {}
    try:
        for benchmark, row in content.get("results", {}).items():
            columns = dict(zip(content["result_columns"], row, strict=False))
            for number, point in enumerate(itertools.product(*columns["params"])):
                cell = {name: columns[name][number] for name in _PER_CELL if columns.get(name)}
                if cell.get("samples"):
                    found.setdefault(benchmark, {})[point] = cell | {"version": int(columns["version"])}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: no results of asv's: allowed: a file that asv or an export wrote") from error
    return found


def _benchmarks(path: Path, files: Iterable[Columns]) -> dict[str, Any]:
    """What is in `path`, and what is new; the parameters of a benchmark are those of all files together."""
    known = _load(path)
    for columns in files:
        for name, cells in columns.items():
            before = known.get(name, {})
            old = before.get("params") or [[] for _ in _PARAMETERS]
            new = _axes(cells)
            try:
                version = max(int(before.get("version", 1)), _newest(cells))
            except ValueError as error:
                raise BadInput(f"{path}: version of {name}: {error}: allowed: a whole number") from error
            known[name] = {
                "name": name,
                "type": "track",
                "unit": history.unit(name.partition(".")[2]),
                "params": [sorted({*first, *second}) for first, second in zip(old, new, strict=True)],
                "param_names": list(_PARAMETERS),
                "version": str(version),
                "timeout": 0,
                "code": f"# {name} of rows made by 'vocabench run'",
            }
    return {**known, "version": _RESULTS}


def _check_machine(path: Path, known: Mapping[str, str], machine: Mapping[str, str]) -> None:
    for name in ("cpu", "num_cpu", "gpu"):
        if known.get(name, "") != machine[name]:
            raise BadInput(
                f"machine {machine['machine']!r} in {path.parent.parent} has {name} {known.get(name, '')!r}, a row "
                f"{machine[name]!r}: allowed: another name by --machine, or none for one a machine"
            )


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BadInput(f"{path}: {error}: allowed: a file that asv wrote") from error
    if not isinstance(content, dict):
        raise BadInput(f"{path}: no object: allowed: a file that asv wrote")
    return content


def _write(path: Path, content: Mapping[str, Any], *, compact: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(content, indent=None if compact else 4, sort_keys=not compact), encoding="utf-8")
    os.replace(beside, path)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-")
