"""Our figures next to those printed in papers: value, ours, difference, and possible reasons for it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from vocabench.harness import registry
from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.published.ledger import BASELINE, Figure
from vocabench.harness.report.formats import FORMATS, section
from vocabench.harness.report.ours import WITHOUT_SPLIT, Ours
from vocabench.harness.report.rows import Filter
from vocabench.harness.report.units import seconds, size
from vocabench.harness.run.cells import Cell, variant
from vocabench.impls.errors import unknown

NOT_RUN = "not run"
POOLED, PLAIN_MEAN = "pooled errors", "mean over languages"  # ways to average over the languages of a group

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
        average: How ours is averaged over the languages of a group; the papers print the mean over languages.
        data, size, epochs: What of these differs between the paper's experiment and ours.
        reason: Other reasons for a difference, or why there is no measurement.
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
    average: str = ""
    data: str = ""
    size: str = ""
    epochs: str = ""
    reason: str = ""
    setup: str = ""


KEYS = tuple(item.name for item in dataclasses.fields(Line))


def _comparable(figure: Figure, own: Ours) -> Iterator[Ours]:
    """Yield our figures that a published one can stand next to: of its split and of its languages.

    A figure of a group stands next to two of ours: the mean over its languages, and their errors pooled.
    """
    if own.quantity != figure.quantity or own.value is None:
        return
    if own.quantity not in WITHOUT_SPLIT and own.split not in figure.table.splits:
        return
    if own.tested_on != figure.tested_on:
        return
    if figure.language:
        if own.tested_on == {figure.language}:
            yield own
        elif figure.language in own.parts:
            yield dataclasses.replace(own, value=own.parts[figure.language], ratio=None, interval=None)
    elif figure.group:
        members = frozenset(figure.table.languages[figure.group])
        if members <= own.parts.keys():
            mean = math.fsum(own.parts[name] for name in members) / len(members)
            yield dataclasses.replace(own, value=mean, ratio=None, interval=None, average=PLAIN_MEAN)
        if members == own.tested_on:
            yield dataclasses.replace(own, average=POOLED)
        elif members in own.pooled:
            yield dataclasses.replace(own, value=own.pooled[members], ratio=None, interval=None, average=POOLED)
    else:
        yield own


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
        matches = [part for own in same for part in _comparable(figure, own)]
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
    reasons = [f"{own.cell.framework}: {own.status}" for own in same if own.quantity is None]
    measured = [own for own in same if own.quantity == figure.quantity and own.value is not None]
    splits = [own for own in measured if own.split in figure.table.splits or own.quantity in WITHOUT_SPLIT]
    if measured and not splits:
        reasons.append(f"only of the split {', '.join(sorted({own.split or 'unknown' for own in measured}))}")
    elif measured:
        reasons.append("only of other languages")
    return ", ".join(reasons)


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
        average=own.average,
        data=_data(figure, own),
        size=", ".join(_differences(table.cell, own.cell.to_json(), list(table.cell))),
        epochs=", ".join(_differences(table.settings, own.cell.settings, ["epochs"])),
        reason="; ".join(_reasons(figure, own)),
    )
    if own.average == POOLED:
        return line  # the papers print means over languages
    if not _is_cost(figure):
        return dataclasses.replace(line, difference=value - figure.value, relative=value / figure.value - 1)
    if figure.ratio and own.ratio and figure.method != BASELINE:
        return dataclasses.replace(line, difference=own.ratio - figure.ratio, relative=own.ratio / figure.ratio - 1)
    return line


def _is_cost(figure: Figure) -> bool:
    return figure.unit in _COST_UNITS or figure.quantity == "rtf"


def _data(figure: Figure, own: Ours) -> str:
    """Return our data if the paper's are other data."""
    cell, table = own.cell, figure.table
    if not table.dataset or cell.dataset == table.dataset:
        return ""
    return f"{cell.dataset or 'synthetic'}, {cell.vocab:,} words"


def _reasons(figure: Figure, own: Ours) -> Iterator[str]:
    """Yield the other differences between the paper's experiment and ours, as far as both are recorded."""
    cell, table = own.cell, figure.table
    if own.agreement == DISAGREE:
        yield "does not agree with the definition"
    yield from _differences(table.settings, cell.settings, [name for name in table.settings if name != "epochs"])
    if not table.settings and not table.cell and cell.task == "timing":
        yield f"V={cell.vocab:,} N={cell.tokens:,} D={cell.dim} on a {cell.device}"
    options = {name: value for name, value in cell.options.items() if name not in figure.options}
    if options:
        yield f"options {variant(options)[1:-1]}"
    if own.average == POOLED:
        yield "the paper prints the mean over languages"
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
            "row": [_name(line) for line in part],
            "quantity": [line.quantity for line in part],
            "paper": [_shown(line, line.paper_value, line.paper_ratio, "g") for line in part],
            "framework": [line.framework or "" for line in part],
            "ours": [_ours(line) for line in part],
            "seeds": ["" if line.seeds is None else str(line.seeds) for line in part],
            "difference": [_difference(line) for line in part],
            **{name: [getattr(line, name) for line in part] for name in ("data", "size", "epochs")},
            "other differences": [line.reason for line in part],
        }
    )


def _name(line: Line) -> str:
    return " ".join(filter(None, [line.label, line.language or line.group, line.average, line.options]))


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
