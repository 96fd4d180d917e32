"""asv's results format, version 2, written without asv, so that rows from machines without it join its history.

The results folder contains `benchmarks.json`, which lists what is measured, and a folder per machine. That has a
`machine.json` and a file per commit and environment, with the columns of each benchmark: lists over the product of its
parameters.
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
from vocabench.harness.run.rows import Row
from vocabench.impls.errors import BadInput

_RESULTS, _MACHINE = 2, 1  # versions of the format
_PARAMETERS = ("framework", "method", "cell")
_PER_CELL = (
    "result", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25", "stats_q_75", "stats_number", "stats_repeat", "samples",
)  # fmt: skip
_COLUMNS = ("params", "version", *_PER_CELL)

Parameters = tuple[str, ...]  # parameter values of one figure, as their repr, which is asv's form
Columns = dict[str, dict[Parameters, dict[str, Any]]]  # by benchmark; "version" is the figure's definition


@dataclass(frozen=True)
class Origin:
    """Commit, machine and environment of a results file.

    Attributes:
        date: Time of the commit, in milliseconds.
        machine: Contents of `machine.json`.
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
    """Return the origin of a row.

    asv splits its graphs by each of these values. The version of the kernel and the exact amount of memory, which
    differ from one start of a virtual machine to the next, are therefore left out.

    Args:
        date: Time of the row's commit, in milliseconds.
        machine_name: Name of the machine's folder; None makes one of the processor, the cores and the GPU.
    """
    machine, framework = row.provenance.machine, row.provenance.framework
    gpu = "" if row.cell.device == "cpu" else str(framework.get("device_name", ""))
    hardware = f"{machine.get('cpu')} {machine.get('cores')} cores"
    return Origin(
        commit=row.provenance.code["commit"],
        date=date,
        machine={
            "machine": machine_name or _file_name(" ".join(filter(None, [gpu, hardware]))),
            "os": str(machine.get("system", "")).partition(" ")[0],
            "arch": "" if gpu else str(framework.get("device_name", "")),
            "cpu": str(machine.get("cpu", "")),
            "num_cpu": str(machine.get("cores", "")),
            "ram": f"{machine['memory_bytes'] / 2**30:.0f} GiB" if machine.get("memory_bytes") else "",
            "gpu": gpu,
        },
        python=".".join(str(machine.get("python", "")).split(".")[:2]),
        framework=row.cell.framework,
        framework_version=str(framework.get(row.cell.framework, "")),
        threads=str(framework.get("threads", "")),
    )


def name_of(cell: Cell) -> str:
    """Return asv's name of a cell: everything but framework and method that distinguishes it from other cells."""
    defaults = matching.default_settings(cell.task)
    parts = [f"{cell.dataset}@{cell.dataset_sha256[:8]}" if cell.dataset else ""]
    parts += [f"V={cell.vocab:,}" if cell.vocab else "", f"D={cell.dim} N={cell.tokens}", cell.precision, cell.device]
    parts += [f"seed={cell.seed}" if cell.seed else ""]
    for name, value in cell.settings.items():
        if matching.distinguishes(cell.task, name) and not (name in defaults and value == _plain(defaults[name])):
            parts.append(f"{name}={'+'.join(map(str, value)) if isinstance(value, list) else value}")
    return " ".join(filter(None, parts))


def write(folder: Path, rows: Iterable[tuple[Origin, Row]]) -> list[Path]:
    """Add every figure of the rows to the results files, replacing figures that exist already.

    The version of a benchmark is the newest definition by which its figures were measured. asv ignores figures of
    earlier versions; a file that has both keeps only the newest.

    Returns:
        Paths of the results files.

    Raises:
        BadInput: An existing file is not one of asv's, or describes another machine by the same name.
    """
    files: dict[Path, tuple[Origin, Columns]] = {}
    machines: dict[Path, Mapping[str, str]] = {}
    for source, row in rows:
        path = source.path(folder)
        machine_path = path.parent / "machine.json"
        known = machines.setdefault(machine_path, _load(machine_path) or source.machine)
        _check_machine(machine_path, known, source.machine)
        if path not in files:
            files[path] = source, _read(path)
        cell = portable.by_name(row.cell)
        parameters = tuple(map(repr, (cell.framework, cell.method + cell.variant, name_of(cell))))
        for name, samples in history.figures(row).items():
            cells = files[path][1].setdefault(f"{cell.task}.{name}", {})
            columns = _columns(samples) | {"version": history.definition(row, name)}
            if columns["version"] >= cells.get(parameters, columns)["version"]:
                cells[parameters] = columns
    benchmarks = _benchmarks(folder / "benchmarks.json", [columns for _, columns in files.values()])
    for path, (source, columns) in files.items():
        _write(path, _results(source, columns), compact=True)
    for machine_path, machine in machines.items():
        _write(machine_path, {**machine, "version": _MACHINE})
    _write(folder / "benchmarks.json", benchmarks)
    return list(files)


def _columns(samples: list[float]) -> dict[str, Any]:
    """Return the statistics that asv computes: the median, its 99 % interval by order statistics, the quartiles."""
    ascending, count = sorted(samples), len(samples)
    low, median, high = np.quantile(ascending, (0.25, 0.5, 0.75)).tolist()
    cut = int(np.sum(binom.cdf(np.arange(count), count, 0.5) <= 0.005))
    bounds = (ascending[cut - 1], ascending[-cut]) if cut else (-np.inf, np.inf)
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
    """Return the columns of one benchmark over the product of its parameters; null where there is no figure."""
    version = _newest(cells)
    cells = {point: cell for point, cell in cells.items() if cell["version"] == version}
    parameters = _axes(cells)
    of_benchmark = {"params": parameters, "version": str(version)}
    missing = {"result": np.nan}  # NaN means "skipped" in asv, null means "failed"
    grid = [cells.get(point, missing) for point in itertools.product(*parameters)]
    return [of_benchmark[name] if name in of_benchmark else [cell.get(name) for cell in grid] for name in _COLUMNS]


def _newest(cells: Mapping[Parameters, dict[str, Any]]) -> int:
    return max(cell["version"] for cell in cells.values())


def _axes(points: Iterable[Parameters]) -> list[list[str]]:
    return [list(dict.fromkeys(values)) for values in zip(*sorted(points), strict=True)]


def _read(path: Path) -> Columns:
    content = _load(path)
    results: Columns = {}
    try:
        for benchmark, values in content.get("results", {}).items():
            columns = dict(zip(content["result_columns"], values, strict=False))
            for number, point in enumerate(itertools.product(*columns["params"])):
                cell = {name: columns[name][number] for name in _PER_CELL if columns.get(name)}
                if cell.get("samples"):
                    results.setdefault(benchmark, {})[point] = cell | {"version": int(columns["version"])}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: not a results file of asv: allowed: a file that asv or an export wrote") from error
    return results


def _benchmarks(path: Path, files: Iterable[Columns]) -> dict[str, Any]:
    """Return the contents of `path` with new benchmarks added; their parameters are the union over all files."""
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
                f"{machine[name]!r}: allowed: another --machine, or none, which names machines by their hardware"
            )


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BadInput(f"{path}: {error}: allowed: a file that asv wrote") from error
    if not isinstance(content, dict):
        raise BadInput(f"{path}: not an object: allowed: a file that asv wrote")
    return content


def _write(path: Path, content: Mapping[str, Any], *, compact: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=None if compact else 4, sort_keys=not compact), encoding="utf-8")
    os.replace(temporary, path)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-")
