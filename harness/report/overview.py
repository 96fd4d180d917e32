"""The first answer of the report: one line for each form of a method, with its speed next to its quality."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.quantities import HIGHER, QUANTITIES
from vocabench.harness.report.figures import name_of
from vocabench.harness.report.figures.quality import IN_PERCENT, QUALITIES, TITLES
from vocabench.harness.report.rows import Record, is_doubtful, is_held_out, ratio_of, value_of
from vocabench.harness.report.units import ratio, seconds, size
from vocabench.harness.tasks.shared.paired import BASELINE

_MOST_QUALITIES = 4  # columns of the quality of models
_SHAPE = ("vocab", "dim", "tokens", "precision", "device")
_LABELS = {"vocab": "{:,} words", "dim": "width {}", "tokens": "{:,} tokens", "precision": "{}", "device": "{}"}


class Interval(NamedTuple):
    """Positions of a ratio and the ends of its interval on the axis of a column, in percent of its width."""

    value: float
    low: float
    high: float
    one: float


@dataclass(frozen=True)
class Cell:
    """A cell of the overview.

    Attributes:
        text: The figure.
        note: What the reader should know about it: its interval, or a setting that differs from that of the table.
        order: Value by which the column is sorted.
        interval: Position of a ratio, for a drawing of it.
        kind: "best" for the best figure of a column in its framework, "wrong" for a layer that disagrees, or "".
    """

    text: str = ""
    note: str = ""
    order: float | None = None
    interval: Interval | None = None
    kind: str = ""


@dataclass(frozen=True)
class Line:
    """A form of a method in a framework."""

    method: str
    options: str
    name: str
    framework: str
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Overview:
    """The table of a machine.

    Attributes:
        columns: Titles, each with a note below it, of the columns after method and framework.
        setting: Sizes at which speed and memory were measured; empty if they were not.
        is_doubtful: Whether some of the times are marked as doubtful.
    """

    columns: Sequence[tuple[str, str]]
    lines: Sequence[Line]
    setting: str
    is_doubtful: bool


@dataclass
class _Form:
    """The records of a form of a method in a framework, by column."""

    method: str
    options: str
    timed: dict[tuple[object, ...], dict[str, Record]] = field(default_factory=dict)
    scored: dict[tuple[str, ...], list[Record]] = field(default_factory=dict)
    trained: dict[tuple[str, ...], Record] = field(default_factory=dict)
    verdicts: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)


def overview(records: Sequence[Record], conditions: Mapping[str, str]) -> Overview:
    """Return the table of records of one machine, combined over seeds.

    Speed and memory are those of one setting, the one that most forms were measured at. A figure of another setting
    stands in where a form has none, with a note that says so. The quality of a model is shown if it was scored on
    held-out text, in a column of those that were trained under the same conditions.

    Args:
        conditions: Conditions of trainings by trial, as `conditions.conditions` returns them.
    """
    forms = _forms(records, conditions)
    shape = _most_common(key for form in forms.values() for key in form.timed)
    qualities = _qualities(forms.values())
    timed = {key: _at(form, shape) for key, form in forms.items()}
    quantities = [quantity for quantity in _TIMED if any(quantity in by_quantity for _, by_quantity in timed.values())]
    ratios = [
        found
        for _, by_quantity in timed.values()
        for record in by_quantity.values()
        if (found := _ratio_to_show(record)) is not None
    ]
    scale = _scale(ratios)
    lines = []
    for (name, framework), form in forms.items():
        note, by_quantity = timed[name, framework]
        cells = [_timed(by_quantity.get(quantity), note, scale) for quantity in quantities]
        cells += [_quality(form.scored.get(key, ()), key, _trained(form, key, qualities)) for key in qualities]
        lines.append(Line(form.method, form.options, name, framework, [*cells, _agreement(form)]))
    columns = [*(_TIMED[quantity] for quantity in quantities), *map(_quality_title, qualities), ("agreement", "")]
    doubtful = any(is_doubtful(r) for _, by_quantity in timed.values() for r in by_quantity.values())
    setting = "" if shape is None else ", ".join(_LABELS[k].format(v) for k, v in zip(_SHAPE, shape, strict=True))
    is_higher = [quantity != "peak_bytes" for quantity in quantities]
    is_higher += [QUANTITIES[key[1]].better == HIGHER for key in qualities]
    return Overview(columns, _ordered(_with_best(lines, is_higher), is_higher), setting, doubtful)


_TIMED = {
    "layer_seconds": ("layer", "speed"),
    "step_seconds": ("whole model", "speed"),
    "peak_bytes": ("memory", "of the layer, at its peak"),
}


def _forms(records: Iterable[Record], conditions: Mapping[str, str]) -> dict[tuple[str, str], _Form]:
    forms: dict[tuple[str, str], _Form] = {}
    for record in records:
        key = name_of(record), record["framework"]
        form = forms.setdefault(key, _Form(record["method"], record["options"]))
        quantity, task = record["quantity"], record["task"]
        if quantity is None:
            form.failures.append(record["status"])
            continue
        form.verdicts.add(record["agreement"])
        if record["value"] is None:
            continue
        if task == "timing" and quantity in _TIMED:
            fields: dict[str, object] = {**record}
            form.timed.setdefault(tuple(fields[name] for name in _SHAPE), {})[quantity] = record
        elif quantity in QUALITIES.get(task, ()) and is_held_out(record):
            form.scored.setdefault(_quality_key(record, conditions), []).append(record)
        elif quantity == "train_seconds":
            form.trained[_quality_key(record, conditions, "")] = record
    # The oracle is there to be compared with; only what no framework has is measured in NumPy.
    elsewhere = {form.method for (_, framework), form in forms.items() if framework != "numpy"}
    return {key: form for key, form in forms.items() if key[1] != "numpy" or form.method not in elsewhere}


def _quality_key(record: Record, conditions: Mapping[str, str], quantity: str | None = None) -> tuple[str, ...]:
    return (
        record["task"],
        str(record["quantity"]) if quantity is None else quantity,
        record["dataset"],
        f"{record['vocab']:,} {record['units'] or 'words'}",
        record["objective"],
        record["split"],
        conditions.get(record["trial"], ""),
    )


def _most_common(keys: Iterable[tuple[object, ...]]) -> tuple[object, ...] | None:
    counts: dict[tuple[object, ...], int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return max(counts, key=lambda key: (counts[key], key[0]), default=None)  # among equals, the largest vocabulary


def _at(form: _Form, shape: tuple[object, ...] | None) -> tuple[str, dict[str, Record]]:
    """Return the records of a form at a setting, or at the most similar one with what differs."""
    if not form.timed or shape is None:
        return "", {}
    if shape in form.timed:
        return "", form.timed[shape]
    nearest = max(form.timed, key=lambda key: sum(a == b for a, b in zip(key, shape, strict=True)))
    differs = [
        _LABELS[name].format(value)
        for name, value, expected in zip(_SHAPE, nearest, shape, strict=True)
        if value != expected
    ]
    return f"at {', '.join(differs)}", form.timed[nearest]


def _qualities(forms: Iterable[_Form]) -> list[tuple[str, ...]]:
    """Return the qualities to show, those of most models first, if there is something to compare."""
    counts: dict[tuple[str, ...], int] = {}
    for form in forms:
        for key in form.scored:
            counts[key] = counts.get(key, 0) + 1
    return sorted(counts, key=lambda key: -counts[key])[:_MOST_QUALITIES]


def _ratio_to_show(record: Record) -> tuple[float, float, float] | None:
    return None if record["agreement"] == DISAGREE else ratio_of(record)


def _scale(ratios: Iterable[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the logarithms of the ends of the axis on which ratios are drawn."""
    values = [math.log(value) for found in ratios for value in found if 0 < value < math.inf]
    return min([*values, 0.0]), max([*values, 0.0])


def _position(value: float, scale: tuple[float, float]) -> float:
    low, high = scale
    if not 0 < value < math.inf or high == low:
        return 0.0
    return round(100 * min(1.0, max(0.0, (math.log(value) - low) / (high - low))), 1)


def _timed(record: Record | None, note: str, scale: tuple[float, float]) -> Cell:
    if record is None:
        return Cell()
    if record["quantity"] == "peak_bytes":
        return Cell(size(value_of(record)), note, value_of(record))
    if record["agreement"] == DISAGREE:
        return Cell("wrong result", kind="wrong")
    found = ratio_of(record)
    time = seconds(value_of(record))
    if found is None:
        return Cell("", f"{time} {note}".strip())
    value, low, high = found
    star = "*" if is_doubtful(record) else ""
    if record["method"] == BASELINE:
        # One by definition; the interval comes from a second copy of it and shows the noise.
        return Cell("1x", f"noise [{ratio(low)}, {ratio(high)}]{star}, {time}", 1.0)
    positions = Interval(*(_position(end, scale) for end in (value, low, high, 1.0)))
    notes = [f"[{ratio(low)}, {ratio(high)}]{star}", time, note]
    return Cell(f"{ratio(value)}x", ", ".join(filter(None, notes)), value, positions)


def _trained(form: _Form, key: tuple[str, ...], qualities: Sequence[tuple[str, ...]]) -> str:
    """Return how long the training of a model took, for the first of the columns of its quality."""
    first = next(other for other in qualities if (other[0], *other[2:]) == (key[0], *key[2:]))
    record = form.trained.get((key[0], "", *key[2:]))
    return f"trained in {seconds(value_of(record))}" if record is not None and key == first else ""


def _quality(records: Sequence[Record], key: tuple[str, ...], trained: str) -> Cell:
    if not records:
        return Cell()
    record = records[-1]
    quantity = key[1]
    notes = []
    if record["low"] is not None and record["high"] is not None:
        low, high = (_score(end, quantity).removesuffix(" %") for end in (record["low"], record["high"]))
        notes.append(f"[{low}, {high}]")
    if record["seeds"] > 1:
        notes.append(f"{record['seeds']} seeds")
    if len(records) > 1:
        notes.append(f"last of {len(records)} models")
    if trained:
        notes.append(trained)
    return Cell(_score(value_of(record), quantity), ", ".join(notes), value_of(record))


def _score(value: float, quantity: str) -> str:
    if quantity in IN_PERCENT:
        return f"{100 * value:.1f} %"
    return f"{value:.3f}" if quantity == "similarity_correlation" else f"{value:.2f}"


def _quality_title(key: tuple[str, ...]) -> tuple[str, str]:
    _, quantity, dataset, words, objective, split, condition = key
    where = [dataset, objective and f"by {objective}", split if split not in ("", "test") else ""]
    parts = [" ".join(filter(None, where)), words, condition]
    return TITLES[quantity], ", ".join(filter(None, parts))


def _agreement(form: _Form) -> Cell:
    verdicts = form.verdicts
    if DISAGREE in verdicts:
        text, kind = "disagrees", "wrong"
    elif "agree" in verdicts:
        text, kind = "agrees", ""
    else:
        text, kind = ("unchecked" if verdicts - {"none"} else ""), ""
    return Cell(text, ", ".join(dict.fromkeys(form.failures)), kind=kind)


def _with_best(lines: Sequence[Line], is_higher: Sequence[bool]) -> Sequence[Line]:
    """Return the lines with the best figure of each column marked, among the lines of a framework.

    Args:
        is_higher: Whether a higher figure is better, for each column but agreement.
    """
    marked = [list(line.cells) for line in lines]
    for framework in {line.framework for line in lines}:
        members = [number for number, line in enumerate(lines) if line.framework == framework]
        for column, higher in enumerate(is_higher):
            orders = {n: o for n in members if (o := marked[n][column].order) is not None}
            if len(orders) > 1:
                best = (max if higher else min)(orders, key=lambda number: orders[number])
                cell = marked[best][column]
                marked[best][column] = Cell(cell.text, cell.note, cell.order, cell.interval, "best")
    return [
        Line(line.method, line.options, line.name, line.framework, cells)
        for line, cells in zip(lines, marked, strict=True)
    ]


def _ordered(lines: Sequence[Line], is_higher: Sequence[bool]) -> list[Line]:
    """Return the lines by framework, NumPy last: full softmax first, then the best first by their first column."""
    frameworks = sorted(dict.fromkeys(line.framework for line in lines), key=lambda framework: framework == "numpy")
    place = {framework: number for number, framework in enumerate(frameworks)}

    def key(line: Line) -> tuple[float, ...]:
        figures = [
            (column, -order if higher else order)
            for column, (cell, higher) in enumerate(zip(line.cells, is_higher, strict=False))
            if (order := cell.order) is not None
        ]
        column, figure = figures[0] if figures else (len(is_higher), 0.0)
        return place[line.framework], line.name != BASELINE, column, figure

    return sorted(lines, key=key)
