"""Our figures next to those printed in papers: value, ours, difference, and what may be the reason for it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from vocabench.harness import registry
from vocabench.harness.published.ledger import BASELINE, Figure
from vocabench.harness.report.rows import Filter, flatten
from vocabench.harness.report.table import FORMATS, seconds, section, size
from vocabench.harness.run.cells import variant
from vocabench.harness.run.store import Row
from vocabench.impls.errors import unknown

KEYS = (
    "paper", "arxiv", "year", "table", "title", "label", "group", "language", "method", "task", "paper_dataset",
    "quantity", "is_cost", "unit", "paper_value", "paper_ratio", "status", "framework", "options", "dataset", "vocab",
    "value", "ratio", "difference", "relative", "agreement", "reason", "setup",
)  # fmt: skip

NOT_RUN = "not run"
_ALL = "overall"  # the group of a paper that is all of its languages

_COST_UNITS = ("s", "B")  # what depends on the machine, so that only ratios of two papers can be held together

Line = dict[str, Any]


@dataclass(frozen=True)
class Ours:
    """One quantity of one row; of a row that measured nothing, `value` is None and `status` says why.

    `parts` are its values by language, and by group of languages, where the row has them.
    """

    cell: Mapping[str, Any]
    quantity: str | None
    unit: str | None
    value: float | None
    ratio: float | None
    agreement: str
    status: str
    message: str
    parts: Mapping[str, float]


def ours(rows: Sequence[Row], kept: Filter) -> list[Ours]:
    """What `rows`, those of one run, measured, under a filter."""
    measured = [(row["cell"], measurement) for row in rows for measurement in row["measurements"] or [{}]]
    records = flatten(rows)
    found = [
        Ours(
            cell,
            record["quantity"],
            record["unit"],
            record["value"],
            record["ratio_to_full_softmax"],
            record["agreement"],
            record["status"],
            record["message"],
            _parts(measurement.get("detail", {})),
        )
        for (cell, measurement), record in zip(measured, records, strict=True)
    ]
    # A ratio's full softmax need not be one of what is shown.
    return [each for each, record in zip(_with_ratios(found), records, strict=True) if kept.keeps(record)]


def _parts(detail: Mapping[str, Any]) -> dict[str, float]:
    kinds = (detail.get(kind) for kind in ("languages", "groups"))
    found = {name: part["value"] for kind in kinds if isinstance(kind, dict) for name, part in kind.items()}
    return {name: value for name, value in found.items() if value is not None}


def _part(figure: Figure, each: Ours) -> Ours | None:
    """What of `each` stands next to `figure`: its value of the figure's language or group; None where it has none."""
    named = figure.language or (figure.group if each.parts and figure.group != _ALL else "")
    if not named:
        return each
    return dataclasses.replace(each, value=each.parts[named]) if named in each.parts else None


def _with_ratios(found: Sequence[Ours]) -> Iterator[Ours]:
    """What was not timed in pairs gets full softmax's figure of the same run over its own."""
    baselines = {(_without_method(o.cell), o.quantity): o for o in found if o.cell["method"] == BASELINE}
    for each in found:
        baseline = baselines.get((_without_method(each.cell), each.quantity))
        if each.ratio is None and baseline and baseline.value and each.value:
            each = dataclasses.replace(each, ratio=baseline.value / each.value)
        yield each


def _without_method(cell: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in cell.items() if k not in ("suite", "method", "options")}, sort_keys=True)


def lines(figures: Iterable[Figure], measured: Sequence[Ours], kept: Filter) -> list[Line]:
    """A flat line for each of our measurements next to each figure; one without ours where there is none.

    Args:
        kept: Its methods and tasks narrow the figures too.
    """
    found: list[Line] = []
    for figure in figures:
        if kept.methods is not None and figure.method not in kept.methods:
            continue
        if kept.tasks is not None and figure.table.task not in kept.tasks:
            continue
        same = [each for each in measured if _same_work(figure, each)]
        own = (_part(figure, each) for each in same if each.quantity == figure.quantity and each.value is not None)
        values = [each for each in own if each is not None]
        if values:
            found += [_line(figure, each) for each in values]
        else:
            found.append(_line(figure, None) | {"reason": _absence(figure, same)})
    return found


def _same_work(figure: Figure, each: Ours) -> bool:
    return (
        each.cell["task"] == figure.table.task
        and each.cell["method"] == figure.method
        and all(_option(each.cell, name) in _several(value) for name, value in figure.options.items())
    )


def _option(cell: Mapping[str, Any], name: str) -> Any:
    """Of a cell, which names those alone that differ from their defaults."""
    return cell["options"].get(name, registry.definition(cell["method"]).options[name].default)


def _several(value: Any) -> Sequence[Any]:
    """A paper may not tell which of some options it took."""
    return value if isinstance(value, list) else [value]


def _absence(figure: Figure, same: Sequence[Ours]) -> str:
    if figure.method is None:
        return "no such method here"
    if figure.method not in registry.methods():
        return f"{figure.method} is not in this version"
    failed = [f"{each.cell['framework']}: {each.status}" for each in same if each.quantity is None]
    return ", ".join(failed)


def _line(figure: Figure, each: Ours | None) -> Line:
    table, paper = figure.table, figure.table.paper
    line: Line = dict.fromkeys(KEYS)
    line |= {
        "paper": paper.short,
        "arxiv": paper.arxiv,
        "year": paper.year,
        "table": table.name,
        "title": table.title,
        "label": figure.label,
        "group": figure.group,
        "language": figure.language,
        "method": figure.method,
        "task": table.task,
        "paper_dataset": table.dataset,
        "quantity": figure.quantity,
        "is_cost": _is_cost(figure),
        "unit": figure.unit,
        "paper_value": figure.value,
        "paper_ratio": figure.ratio,
        "status": NOT_RUN,
        "setup": table.setup,
    }
    if each is None:
        return line
    assert each.value is not None
    value = 100 * each.value if figure.unit == "%" and each.unit == "1" else each.value
    line |= {
        "status": each.status,
        "framework": each.cell["framework"],
        "options": variant(each.cell["options"]),
        "dataset": each.cell["dataset"],
        "vocab": each.cell["vocab"],
        "value": value,
        "ratio": each.ratio,
        "agreement": each.agreement,
        "reason": "; ".join(_reasons(figure, each)),
    }
    if not _is_cost(figure):
        line |= {"difference": value - figure.value, "relative": value / figure.value - 1}
    elif figure.ratio and each.ratio and figure.method != BASELINE:
        line |= {"difference": each.ratio - figure.ratio, "relative": each.ratio / figure.ratio - 1}
    return line


def _is_cost(figure: Figure) -> bool:
    return figure.unit in _COST_UNITS or figure.quantity == "rtf"


def _reasons(figure: Figure, each: Ours) -> Iterator[str]:
    """What differs between the paper's experiment and ours, as far as both are recorded."""
    cell, table = each.cell, figure.table
    settings = cell["settings"]
    if each.agreement == "disagree":
        yield "does not agree with the definition"
    if table.dataset and cell["dataset"] != table.dataset:
        yield f"other data: {cell['dataset'] or 'synthetic'}, {cell['vocab']:,} words"
    else:
        yield from _differences(table.cell, cell, ("vocab",))
    yield from _differences(table.cell, cell, [name for name in table.cell if name != "vocab"])
    yield from _differences(table.settings, settings, list(table.settings))
    if not table.settings and not table.cell and cell["task"] == "timing":
        yield f"V={cell['vocab']:,} N={cell['tokens']:,} D={cell['dim']} on a {cell['device']}"
    options = {name: value for name, value in cell["options"].items() if name not in figure.options}
    if options:
        yield f"options {variant(options)[1:-1]}"
    if figure.group and figure.group not in each.parts:
        yield f"the paper's is of {figure.group}"
    if _is_cost(figure):
        yield "another machine: the yardstick" if figure.method == BASELINE else "another machine: ratios compared"
    elif figure.ratio and each.ratio and figure.method != BASELINE:
        yield f"over full softmax {_over(figure.ratio)} there, {_over(each.ratio)} here"


def _differences(theirs: Mapping[str, Any], found: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name in theirs and name in found and found[name] != theirs[name]:
            yield f"{name} {_number(found[name])} for {_number(theirs[name])}"


def _over(ratio: float) -> str:
    return f"{100 * (1 / ratio - 1):+.1f} %"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def render(found: Sequence[Line], form: str) -> str:
    """`found` in one of the formats of tables: csv and json give them flat, the others table by table of the papers."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if form == "json":
        return json.dumps(list(found), indent=1) + "\n"
    if form == "csv":
        return pd.DataFrame.from_records(list(found), columns=list(KEYS)).to_csv(index=False)
    tables: dict[tuple[Any, ...], list[Line]] = {}
    for line in found:
        tables.setdefault((line["paper"], line["year"], line["table"], line["title"]), []).append(line)
    return "\n".join(
        section(f"{paper} ({year}), {name}: {title}", _table(part), form)
        for (paper, year, name, title), part in tables.items()
    )


def _table(part: Sequence[Line]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "row": [" ".join(filter(None, [x["label"], x["language"] or x["group"], x["options"]])) for x in part],
            "quantity": [x["quantity"] for x in part],
            "paper": [_shown(x, "paper_value", "paper_ratio") for x in part],
            "framework": [x["framework"] or "" for x in part],
            "ours": [NOT_RUN if x["value"] is None else _shown(x, "value", "ratio") for x in part],
            "difference": [_difference(x) for x in part],
            "reason": [x["reason"] or "" for x in part],
        }
    )


def _shown(line: Line, value: str, ratio: str) -> str:
    found = line[value]
    if line["unit"] in _COST_UNITS:
        text = seconds(found) if line["unit"] == "s" else size(found)
    else:
        text = f"{found:g}" if value == "paper_value" else f"{found:.4g}" if found < 1 else f"{found:.2f}"
    shows_ratio = line[ratio] is not None and line["is_cost"] and line["method"] != BASELINE
    return f"{text} ({line[ratio]:.2f}x)" if shows_ratio else text


def _difference(line: Line) -> str:
    if line["difference"] is None:
        return ""
    # Of costs the ratios are compared, and what they differ by is a share of the paper's.
    return f"{100 * line['relative']:+.0f} %" if line["is_cost"] else f"{line['difference']:+.2f}"
