"""The ledger of published figures that ours can be compared with, one TOML file for each paper."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """A paper.

    Attributes:
        short: Name in tables.
        arxiv: arXiv identifier.
    """

    short: str
    title: str
    authors: str
    arxiv: str
    year: int


@dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
        name: Number in the paper; several numbers if it is not known which of these tables contains a figure.
        task: Our name of the task.
        dataset: Text or recordings of the paper, by our name if we have the same.
        setup: Description of the experiment in the paper.
        cell, settings: Fields and settings of a cell that correspond to the experiment.
        splits: Splits that scores may be of; by default the test split.
        languages: Languages of the test set by group, for experiments in several languages.
        one_model: Whether one model was trained and tested on the languages of all groups, instead of one for each.
    """

    paper: Paper
    name: str
    title: str
    task: str
    dataset: str
    setup: str
    cell: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    splits: Sequence[str] = ("test",)
    languages: Mapping[str, Sequence[str]] = field(default_factory=dict)
    one_model: bool = False


@dataclass(frozen=True)
class Figure:
    """A published figure.

    Attributes:
        label: Name of the row in the paper.
        quantity: Our name of the quantity.
        value: Value in `unit`: times in seconds, memory in bytes, error rates and ROUGE in percent.
        method: Our name of the method; None if we do not have it.
        options: Options of the method; a list of values if the paper does not say which one it used.
        group: Name in `table.languages` of the languages that the figure is a mean over.
        language: Language of the figure, if it is for a single one.
        ratio: Figure of full softmax in the same table divided by this one, if there is one.
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

    @property
    def tested_on(self) -> frozenset[str]:
        """Languages of the test set of the model; empty for an experiment in a single language."""
        groups = self.table.languages
        found = [
            own for name, own in groups.items() if self.table.one_model or name == self.group or self.language in own
        ]
        return frozenset(language for own in found for language in own)


def figures() -> list[Figure]:
    """Return all figures of the ledger by paper, in the order of its tables."""
    return [figure for path in sorted(_FOLDER.glob("*.toml")) for figure in read(path)]


def read(path: Path) -> list[Figure]:
    """Return the figures of one paper.

    Raises:
        BadInput: The file is not TOML, lacks a key or has an unknown one.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"ledger {path.name}: {error}") from error
    tables = content.pop("table", [])
    paper = _make(Paper, content, path)
    return [figure for table in tables for figure in _table(paper, table, path)]


def _table(paper: Paper, content: dict[str, Any], path: Path) -> list[Figure]:
    rows = content.pop("rows", [])
    table = _make(Table, {"paper": paper, **content}, path)
    baselines = {_group(row): row["figures"] for row in rows if row.get("method") == BASELINE}
    figures = []
    for row in rows:
        for quantity, value in row["figures"].items():
            if quantity not in _UNITS:
                raise unknown(f"quantity in {path.name}", quantity, _UNITS)
            baseline = baselines.get(_group(row), {}).get(quantity)
            fields = {name: item for name, item in row.items() if name != "figures"}
            ratio = baseline / value if baseline else None
            figures.append(
                _make(Figure, {"table": table, "quantity": quantity, "value": value, "ratio": ratio, **fields}, path)
            )
    return figures


def _group(row: Mapping[str, Any]) -> tuple[str, str]:
    return row.get("group", ""), row.get("language", "")


def _make(kind: type, content: Mapping[str, Any], path: Path) -> Any:
    names = [field.name for field in dataclasses.fields(kind)]
    for name in content:
        if name not in names:
            raise unknown(f"key of a {kind.__name__.lower()} in {path.name}", name, names)
    try:
        return kind(**content)
    except TypeError as error:
        raise BadInput(f"ledger {path.name}: {error}") from error
