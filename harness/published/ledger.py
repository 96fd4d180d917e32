"""The ledger: every figure of a paper that ours can stand next to, one TOML file a paper."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vocabench.impls.errors import BadInput, unknown

_FOLDER = Path(__file__).parent
_ROUGE = tuple(f"rouge{n}_{kind}" for n in "12L" for kind in ("recall75", "f1"))
_UNITS = {
    **dict.fromkeys(("perplexity", "rtf"), "1"),
    **dict.fromkeys(("cer", "per", *_ROUGE), "%"),
    **dict.fromkeys(("train_seconds", "layer_seconds"), "s"),
    "peak_bytes": "B",
}

BASELINE = "full_softmax"


@dataclass(frozen=True)
class Paper:
    """
    Attributes:
        short: What tables call it.
        arxiv: Its number there.
    """

    short: str
    title: str
    authors: str
    arxiv: str
    year: int


@dataclass(frozen=True)
class Table:
    """
    Attributes:
        name: As the paper numbers it; several where it is not recorded which of them holds a figure.
        task: As we call it.
        dataset: The paper's text or recordings; where we have the same, by our name.
        setup: What the paper says of the experiment.
        cell, settings: The same as far as fields and settings of a cell can say it, to be held against ours.
    """

    paper: Paper
    name: str
    title: str
    task: str
    dataset: str
    setup: str
    cell: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """One number as it was printed.

    Attributes:
        label: The paper's name of the row.
        method, options: As our registry has it; None where it has no such method.
        quantity: One of ours.
        value: In `unit`: times in seconds, memory in bytes, error rates and ROUGE in percent.
        group: The languages that it is a mean over, or what else tells it from others of its label.
        language: The one language that it is of.
        ratio: The figure of full softmax in the same table over this one, where there is one.
    """

    table: Table
    label: str
    quantity: str
    value: float
    method: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    language: str = ""
    ratio: float | None = None

    @property
    def unit(self) -> str:
        return _UNITS[self.quantity]


def figures() -> list[Figure]:
    """Every figure of the ledger, paper by paper, in the order of its tables."""
    return [figure for path in sorted(_FOLDER.glob("*.toml")) for figure in read(path)]


def read(path: Path) -> list[Figure]:
    """The figures of one paper.

    Raises:
        BadInput: The file is no TOML, lacks a key or has one that nothing reads.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"ledger {path.name}: {error}") from error
    tables = content.pop("table", [])
    paper = _make(Paper, content, path)
    return [figure for each in tables for figure in _table(paper, each, path)]


def _table(paper: Paper, content: dict[str, Any], path: Path) -> list[Figure]:
    rows = content.pop("rows", [])
    table = _make(Table, {"paper": paper, **content}, path)
    baselines = {_group(row): row["figures"] for row in rows if row.get("method") == BASELINE}
    found = []
    for row in rows:
        for quantity, value in row["figures"].items():
            if quantity not in _UNITS:
                raise unknown(f"quantity in {path.name}", quantity, _UNITS)
            baseline = baselines.get(_group(row), {}).get(quantity)
            given = {name: item for name, item in row.items() if name != "figures"}
            ratio = baseline / value if baseline else None
            found.append(
                _make(Figure, {"table": table, "quantity": quantity, "value": value, "ratio": ratio, **given}, path)
            )
    return found


def _group(row: Mapping[str, Any]) -> tuple[str, str]:
    return row.get("group", ""), row.get("language", "")


def _make(kind: type, content: Mapping[str, Any], path: Path) -> Any:
    names = [each.name for each in fields(kind)]
    for name in content:
        if name not in names:
            raise unknown(f"key of a {kind.__name__.lower()} in {path.name}", name, names)
    try:
        return kind(**content)
    except TypeError as error:
        raise BadInput(f"ledger {path.name}: {error}") from error
