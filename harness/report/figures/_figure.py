"""Figures of the report, as values from which the page's script draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vocabench.harness.report import looks
from vocabench.harness.report.rows import Record
from vocabench.harness.run.cells import Cell


class Axis(NamedTuple):
    """An axis of a figure.

    Attributes:
        label: What it shows.
        unit: How its ticks are written: "number", "ratio", "percent", "bytes" or "count".
        is_logarithmic: Whether equal distances are equal ratios.
        ticks: Values at which to put the ticks; otherwise round values are chosen.
        includes: A value that the axis contains in any case.
    """

    label: str
    unit: str = "number"
    is_logarithmic: bool = True
    ticks: Sequence[float] = ()
    includes: float | None = None


class Form(NamedTuple):
    """What a line or a mark stands for.

    Attributes:
        options: Options of the method as text.
        apart: What distinguishes it from others with the same name, such as "seed 1".
    """

    method: str
    options: str
    framework: str
    apart: str = ""

    @property
    def name(self) -> str:
        """The method with its options."""
        return looks.name(self.method, self.options)

    @property
    def full_name(self) -> str:
        return f"{self.name} ({self.apart})" if self.apart else self.name


class Mark(NamedTuple):
    """A mark of a figure, with the ends of its interval if it has one."""

    form: Form
    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Attributes:
        section: Id of its section in the report.
        title: Contents.
        caption: Explanation.
        kind: "lines" of marks from left to right, "points" with a label each, or "dots": a line of the page for each
            form, with x to the right.
        x, y: Axes.
        marks: What is drawn.
        columns, lines: The same values as a table, with one line for each mark.
        description: Text for screen readers.
        rule: Value that is marked by a line across: of y, or of x for "dots".
        path: Further line, such as a Pareto front.
        joined: Whether the marks of a form are joined, in a figure of "points".
    """

    section: str
    title: str
    caption: str
    kind: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    description: str
    rule: float | None = None
    path: Sequence[tuple[float, float]] = field(default_factory=tuple)
    joined: bool = False

    @property
    def forms(self) -> list[Form]:
        """The forms that occur, in order of appearance."""
        return list(dict.fromkeys(mark.form for mark in self.marks))

    @property
    def labels(self) -> dict[Form, str]:
        """A short label of each form, which tells it from the others."""
        forms = self.forms
        labels = looks.labels((form.method, form.options) for form in forms)
        several = len({form.framework for form in forms}) > 1
        return {
            form: ", ".join(
                filter(None, (labels[form.method, form.options], form.framework if several else "", form.apart))
            )
            for form in forms
        }

    def to_json(self) -> dict[str, Any]:
        """Return the figure without its title, caption and table, as the script expects it."""
        labels = self.labels
        place = {form: number for number, form in enumerate(labels)}
        return {
            "kind": self.kind,
            "x": self.x._asdict(),
            "y": self.y._asdict(),
            "forms": [
                {"name": form.name, "label": label, "framework": form.framework} for form, label in labels.items()
            ],
            "marks": [[place[mark.form], *map(_brief, mark[1:])] for mark in self.marks],
            "rule": self.rule,
            "path": [[_brief(x), _brief(y)] for x, y in self.path],
            "joined": self.joined,
            "description": self.description,
        }


def _brief(value: float | None) -> float | None:
    """Return a value with as many digits as a drawing shows."""
    return None if value is None else float(f"{value:.6g}")


def form_of(record: Record) -> Form:
    return Form(record["method"], record["options"], record["framework"])


def form_of_cell(cell: Cell, apart: str = "") -> Form:
    """Return the same form as `form_of` for the records of a cell."""
    return Form(cell.method, cell.variant, cell.framework, apart)


def name_of(record: Record) -> str:
    """Return the method with its options."""
    return looks.name(record["method"], record["options"])


def unless_test(split: str | None) -> str:
    """Return the suffix of a title that names a split other than "test"."""
    return f", {split} split" if split not in (None, "", "test") else ""


def sizes_axis(sizes: Iterable[int]) -> Axis:
    """Return the axis of the size of the vocabulary, with the ticks at the sizes measured."""
    return Axis("vocabulary (words)", "count", ticks=sorted(set(sizes)))
