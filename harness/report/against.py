"""Our figures next to those printed in papers: value, ours, difference, and possible reasons for it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from vocabench.harness import registry
from vocabench.harness.measure import seeds
from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.published.ledger import BASELINE, Figure
from vocabench.harness.quantities import is_on_log_scale
from vocabench.harness.report.formats import FORMATS, section
from vocabench.harness.report.rows import Filter, flatten
from vocabench.harness.report.units import seconds, size
from vocabench.harness.run.cells import Cell, variant
from vocabench.harness.run.rows import Row
from vocabench.impls.errors import unknown

NOT_RUN = "not run"
_ALL = "overall"  # a paper's group of all its languages

_COST_UNITS = ("s", "B")  # quantities that depend on the machine; only ratios of these can be compared


@dataclass(frozen=True)
class Line:
    """A published figure next to one of our measurements, or to none.

    Attributes:
        is_cost: Whether the figure depends on the machine, so that only ratios to full softmax are compared.
        paper_ratio, ratio: Figure of full softmax divided by this one, in the paper and here.
        status: Status of our row, or `NOT_RUN`.
        low, high: 95 % interval of `value` over seeds, if there are several.
        difference: Ours minus theirs: of the ratios for a cost, else of the values.
        relative: The same as a share of theirs.
        reason: Reasons for a difference, or why there is no measurement.
    """

    paper: str
    arxiv: str
    year: int
    table: str
    title: str
    label: str
    group: str
    language: str
    method: str | None
    task: str
    paper_dataset: str
    quantity: str
    is_cost: bool
    unit: str
    paper_value: float
    paper_ratio: float | None
    status: str = NOT_RUN
    framework: str | None = None
    options: str | None = None
    dataset: str | None = None
    vocab: int | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int | None = None
    ratio: float | None = None
    difference: float | None = None
    relative: float | None = None
    agreement: str | None = None
    reason: str = ""
    setup: str = ""


KEYS = tuple(field.name for field in dataclasses.fields(Line))


@dataclass(frozen=True)
class Ours:
    """One quantity of one row, or of several rows that differ by their seed alone.

    Attributes:
        value: The mean over seeds; None if the row has no measurements; `status` gives the reason.
        ratio: Figure of full softmax divided by `value`.
        parts: Values by language and by group of languages, if the row has them.
        seeds: Number of seeds.
        interval: 95 % interval of `value` over seeds, if there are several.
    """

    cell: Cell
    quantity: str | None
    unit: str | None
    value: float | None
    ratio: float | None
    agreement: str
    status: str
    message: str
    parts: Mapping[str, float]
    seeds: int = 1
    interval: tuple[float, float] | None = None


def ours(rows: Sequence[Row], selected: Filter) -> list[Ours]:
    """Return the selected measurements of the rows of one run."""
    measured = [(row.cell, measurement) for row in rows for measurement in row.measurements or [None]]
    records = flatten(rows)
    figures = [
        Ours(
            cell,
            record["quantity"],
            record["unit"],
            record["value"],
            record["ratio_to_full_softmax"],
            record["agreement"],
            record["status"],
            record["message"],
            _parts(measurement.detail) if measurement is not None else {},
        )
        for (cell, measurement), record in zip(measured, records, strict=True)
    ]
    # Ratios come first, because full softmax itself may not be selected.
    chosen = [own for own, record in zip(_with_ratios(figures), records, strict=True) if selected.keeps(record)]
    models: dict[str, list[Ours]] = {}
    for own in chosen:
        fields = {key: value for key, value in own.cell.to_json().items() if key not in ("suite", "seed")}
        models.setdefault(json.dumps([own.quantity, fields], sort_keys=True), []).append(own)
    return [mean for trainings in models.values() for mean in _over_seeds(trainings)]


def _over_seeds(trainings: Sequence[Ours]) -> Sequence[Ours]:
    """Return one figure for trainings that differ by their seed alone, with means; others as they are."""
    quantity = trainings[0].quantity
    measured = {own.cell.seed: own for own in trainings if own.value is not None}
    if quantity is None or len(measured) < 2:
        return trainings
    members = list(measured.values())
    values = [own.value for own in members if own.value is not None]
    is_log = is_on_log_scale(quantity) and min(values) > 0
    mean = (seeds.geometric_mean if is_log else seeds.mean)(values)
    ratios = [own.ratio for own in members if own.ratio]
    names = set.intersection(*(set(own.parts) for own in members))
    return [
        dataclasses.replace(
            members[0],
            value=mean.value,
            ratio=seeds.geometric_mean(ratios).value if ratios else None,
            parts={name: seeds.mean([own.parts[name] for own in members]).value for name in sorted(names)},
            seeds=mean.seeds,
            interval=(mean.low, mean.high),
        )
    ]


def _parts(detail: Mapping[str, Any]) -> dict[str, float]:
    kinds = (detail.get(kind) for kind in ("languages", "groups"))
    parts = {name: part["value"] for kind in kinds if isinstance(kind, dict) for name, part in kind.items()}
    return {name: value for name, value in parts.items() if value is not None}


def _part(figure: Figure, own: Ours) -> Ours | None:
    """Return our figure restricted to the language or group of a published one; None if we have no such part."""
    name = figure.language or (figure.group if own.parts and figure.group != _ALL else "")
    if not name:
        return own
    return dataclasses.replace(own, value=own.parts[name], interval=None) if name in own.parts else None


def _with_ratios(figures: Sequence[Ours]) -> Iterator[Ours]:
    """Add ratios to figures that were not timed in pairs, from full softmax in the same run."""
    baselines = {(_without_method(own.cell), own.quantity): own for own in figures if own.cell.method == BASELINE}
    for own in figures:
        baseline = baselines.get((_without_method(own.cell), own.quantity))
        if own.ratio is None and baseline and baseline.value and own.value:
            own = dataclasses.replace(own, ratio=baseline.value / own.value)
        yield own


def _without_method(cell: Cell) -> str:
    fields = {key: value for key, value in cell.to_json().items() if key not in ("suite", "method", "options")}
    return json.dumps(fields, sort_keys=True)


def lines(figures: Iterable[Figure], measured: Sequence[Ours], selected: Filter) -> list[Line]:
    """Return a flat line for each of our measurements of each published figure, or one line without a measurement.

    Args:
        figures: Published figures.
        measured: Our measurements.
        selected: Methods and tasks of this filter also apply to `figures`.
    """
    result: list[Line] = []
    for figure in figures:
        if selected.methods is not None and figure.method not in selected.methods:
            continue
        if selected.tasks is not None and figure.table.task not in selected.tasks:
            continue
        same = [own for own in measured if _same_work(figure, own)]
        parts = (_part(figure, own) for own in same if own.quantity == figure.quantity and own.value is not None)
        matches = [part for part in parts if part is not None]
        if matches:
            result += [_line(figure, own) for own in matches]
        else:
            result.append(dataclasses.replace(_line(figure, None), reason=_absence(figure, same)))
    return result


def _same_work(figure: Figure, own: Ours) -> bool:
    return (
        own.cell.task == figure.table.task
        and own.cell.method == figure.method
        and all(_option(own.cell, name) in _alternatives(value) for name, value in figure.options.items())
    )


def _option(cell: Cell, name: str) -> Any:
    """Return the value of an option; a cell contains only the options that differ from their defaults."""
    return cell.options.get(name, registry.definition(cell.method).options[name].default)


def _alternatives(value: Any) -> Sequence[Any]:
    """Return the values that an option may have had; a list means that the paper does not say which."""
    return value if isinstance(value, list) else [value]


def _absence(figure: Figure, same: Sequence[Ours]) -> str:
    """Return the reason why there is no measurement."""
    if figure.method is None:
        return "no such method here"
    if figure.method not in registry.methods():
        return f"{figure.method} is not in this version"
    failed = [f"{own.cell.framework}: {own.status}" for own in same if own.quantity is None]
    return ", ".join(failed)


def _line(figure: Figure, own: Ours | None) -> Line:
    table, paper = figure.table, figure.table.paper
    line = Line(
        paper=paper.short,
        arxiv=paper.arxiv,
        year=paper.year,
        table=table.name,
        title=table.title,
        label=figure.label,
        group=figure.group,
        language=figure.language,
        method=figure.method,
        task=table.task,
        paper_dataset=table.dataset,
        quantity=figure.quantity,
        is_cost=_is_cost(figure),
        unit=figure.unit,
        paper_value=figure.value,
        paper_ratio=figure.ratio,
        setup=table.setup,
    )
    if own is None:
        return line
    assert own.value is not None
    scale = 100 if figure.unit == "%" and own.unit == "1" else 1
    value = scale * own.value
    line = dataclasses.replace(
        line,
        status=own.status,
        framework=own.cell.framework,
        options=own.cell.variant,
        dataset=own.cell.dataset,
        vocab=own.cell.vocab,
        value=value,
        low=None if own.interval is None else scale * own.interval[0],
        high=None if own.interval is None else scale * own.interval[1],
        seeds=own.seeds,
        ratio=own.ratio,
        agreement=own.agreement,
        reason="; ".join(_reasons(figure, own)),
    )
    if not _is_cost(figure):
        return dataclasses.replace(line, difference=value - figure.value, relative=value / figure.value - 1)
    if figure.ratio and own.ratio and figure.method != BASELINE:
        return dataclasses.replace(line, difference=own.ratio - figure.ratio, relative=own.ratio / figure.ratio - 1)
    return line


def _is_cost(figure: Figure) -> bool:
    return figure.unit in _COST_UNITS or figure.quantity == "rtf"


def _reasons(figure: Figure, own: Ours) -> Iterator[str]:
    """Yield the differences between the paper's experiment and ours, as far as both are recorded."""
    cell, table = own.cell, figure.table
    fields = cell.to_json()
    if own.agreement == DISAGREE:
        yield "does not agree with the definition"
    if table.dataset and cell.dataset != table.dataset:
        yield f"other data: {cell.dataset or 'synthetic'}, {cell.vocab:,} words"
    else:
        yield from _differences(table.cell, fields, ("vocab",))
    yield from _differences(table.cell, fields, [name for name in table.cell if name != "vocab"])
    yield from _differences(table.settings, cell.settings, list(table.settings))
    if not table.settings and not table.cell and cell.task == "timing":
        yield f"V={cell.vocab:,} N={cell.tokens:,} D={cell.dim} on a {cell.device}"
    options = {name: value for name, value in cell.options.items() if name not in figure.options}
    if options:
        yield f"options {variant(options)[1:-1]}"
    if figure.group and figure.group not in own.parts:
        yield f"the paper's figure is for {figure.group}"
    if _is_cost(figure):
        yield "another machine: the baseline" if figure.method == BASELINE else "another machine: ratios compared"
    elif figure.ratio and own.ratio and figure.method != BASELINE:
        yield f"relative to full softmax {_excess(figure.ratio)} there, {_excess(own.ratio)} here"


def _differences(theirs: Mapping[str, Any], own: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name in theirs and name in own and own[name] != theirs[name]:
            yield f"{name} {_number(own[name])} for {_number(theirs[name])}"


def _excess(ratio: float) -> str:
    """Return how much higher a figure is than that of full softmax, given the ratio of full softmax to it."""
    return f"{100 * (1 / ratio - 1):+.1f} %"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def render(compared: Sequence[Line], text_format: str) -> str:
    """Return lines in one of `FORMATS`; csv and json list them flat, the others group them by table of the papers."""
    if text_format not in FORMATS:
        raise unknown("format", text_format, FORMATS)
    if text_format == "json":
        return json.dumps([dataclasses.asdict(line) for line in compared], indent=1) + "\n"
    if text_format == "csv":
        return pd.DataFrame([dataclasses.asdict(line) for line in compared], columns=list(KEYS)).to_csv(index=False)
    tables: dict[tuple[str, int, str, str], list[Line]] = {}
    for line in compared:
        tables.setdefault((line.paper, line.year, line.table, line.title), []).append(line)
    return "\n".join(
        section(f"{paper} ({year}), {name}: {title}", _table(part), text_format)
        for (paper, year, name, title), part in tables.items()
    )


def _table(part: Sequence[Line]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "row": [" ".join(filter(None, [line.label, line.language or line.group, line.options])) for line in part],
            "quantity": [line.quantity for line in part],
            "paper": [_shown(line, line.paper_value, line.paper_ratio, "g") for line in part],
            "framework": [line.framework or "" for line in part],
            "ours": [_ours(line) for line in part],
            "seeds": ["" if line.seeds is None else str(line.seeds) for line in part],
            "difference": [_difference(line) for line in part],
            "reason": [line.reason for line in part],
        }
    )


def _ours(line: Line) -> str:
    if line.value is None:
        return NOT_RUN
    number_format = ".4g" if line.value < 1 else ".2f"
    interval = ""
    if line.low is not None and line.high is not None and not line.is_cost:
        interval = f" [{line.low:{number_format}}, {line.high:{number_format}}]"
    return _shown(line, line.value, line.ratio, number_format) + interval


def _shown(line: Line, value: float, ratio: float | None, number_format: str) -> str:
    if line.unit in _COST_UNITS:
        text = seconds(value) if line.unit == "s" else size(value)
    else:
        text = f"{value:{number_format}}"
    shows_ratio = ratio is not None and line.is_cost and line.method != BASELINE
    return f"{text} ({ratio:.2f}x)" if shows_ratio else text


def _difference(line: Line) -> str:
    if line.difference is None or line.relative is None:
        return ""
    # For costs, the difference of the ratios is shown as a share of the paper's ratio.
    return f"{100 * line.relative:+.0f} %" if line.is_cost else f"{line.difference:+.2f}"
