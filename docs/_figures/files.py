"""Tables of results files: what their rows were measured on, by which code, and by which definition of a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from docs._figures.published import NotFound, Published
from docs._figures.show import FRAMEWORKS
from docs._figures.tables import markdown
from vocabench.harness.report.machines import machine_of
from vocabench.harness.run.rows import Measurement, Row

_ABBREVIATED = 7  # digits of a commit


def table(content: Mapping[str, Any], published: Published) -> str:
    """Return a table with a line for each of the results files `files`, and the columns `columns` of `_COLUMNS`.

    A cell lists the different values of the file's rows.
    """
    titles = content["columns"]
    if unknown := [title for title in titles if title not in _COLUMNS]:
        raise NotFound(f"unknown column {unknown[0]!r} of files: allowed: {', '.join(_COLUMNS)}")
    body = []
    for file in content["files"]:
        rows = published.rows(file)
        values = [dict.fromkeys(value for row in rows for value in _COLUMNS[title](row)) for title in titles]
        body.append([f"[{file}](../results/{file}.jsonl)", *("; ".join(sorted(value)) for value in values)])
    return markdown(["rows", *titles], [False] * (1 + len(titles)), body)


def _machine(row: Row) -> Iterator[str]:
    yield machine_of(row)


def _commit(row: Row) -> Iterator[str]:
    yield str(row.provenance.code.get("commit", ""))[:_ABBREVIATED]


def _version(row: Row) -> Iterator[str]:
    framework = row.cell.framework
    if version := row.provenance.framework.get(framework):
        yield f"{FRAMEWORKS[framework]} {str(version).partition('+')[0]}"


def _times(row: Row) -> list[Measurement]:
    return [measurement for measurement in row.measurements if measurement.ratio is not None]


def _definition(row: Row) -> Iterator[str]:
    for measurement in _times(row):
        yield str(measurement.detail.get("timing", "none"))


def _processes(row: Row) -> Iterator[str]:
    for measurement in _times(row):
        yield str(len(measurement.processes) or 1)


_COLUMNS: Mapping[str, Callable[[Row], Iterator[str]]] = {
    "machine": _machine,
    "commit": _commit,
    "framework": _version,
    "definition of times": _definition,
    "processes": _processes,
}
