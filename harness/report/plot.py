"""Figures of the report as a picture in a file, drawn by matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vocabench.harness.atomic_write import atomic_writer
from vocabench.harness.installing import pip_install
from vocabench.harness.report import looks, units
from vocabench.harness.report.figures import Axis, Figure, Form, Mark
from vocabench.harness.report.looks import Look
from vocabench.impls.errors import BadInput

_MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "triangle-down": "v",
    "plus": "P",
    "cross": "X",
    "star": "*",
}
_WIDTH, _HEIGHT = 3.5, 3.6  # inches of a panel, without the labels of its marks
_LABELS = 2.2  # inches beside a panel
_LINE = 0.17  # height of a label in inches
_MOST_PANELS = 2  # in a row
_LEAST_DISTANCE = 0.09  # between two labelled values, as a share of the axis
_LETTERS = 36  # of a label
_TITLE = 58  # letters in a line of a title
_ENDINGS = (".svg", ".png", ".pdf")

_FORMATS: dict[str, Callable[[float], str]] = {
    "number": lambda value: f"{value:g}",
    "ratio": lambda value: f"{value:g}x",
    "bytes": units.size,
    "count": units.thousands,
    "percent": lambda value: f"{100 * value:g} %",
}

_Axes = Any  # matplotlib's type; matplotlib is imported only for drawing


def draw(figures: Sequence[Figure], path: Path) -> None:
    """Write a picture with a panel for each figure, in the format of the file's extension.

    Every form is labelled at the right, next to its last mark. Colours and marks are those of the report.

    Raises:
        BadInput: matplotlib is not installed, the extension is unknown, or there is no figure.
    """
    if path.suffix not in _ENDINGS:
        raise BadInput(f"plot {path}: allowed: a name that ends in {', '.join(_ENDINGS)}")
    matplotlib = _matplotlib()
    if not figures:
        raise BadInput("nothing to plot: allowed: a run with such figures, of layers that agree")
    from matplotlib import pyplot

    found = looks.of_forms((form.method, form.options) for figure in figures for form in figure.forms)
    most = max(len(figure.forms) for figure in figures)
    columns = min(len(figures), _MOST_PANELS)
    rows = math.ceil(len(figures) / columns)
    size = (columns * (_WIDTH + _LABELS), rows * max(_HEIGHT, _LINE * most + 1))
    settings = {
        "svg.hashsalt": "vocabench",  # for reproducible files
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 9,
    }
    with matplotlib.rc_context(settings):
        # Panels of one quantity share its axis, so that their heights can be compared.
        shared = len({figure.y for figure in figures}) == 1 and all(figure.kind != "dots" for figure in figures)
        picture, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, sharey=shared)
        try:
            picture.subplots_adjust(**_margins(size, columns))
            for place, figure in zip(axes.flat, figures, strict=False):
                _panel(place, figure, found)
            for empty in list(axes.flat)[len(figures) :]:
                empty.set_axis_off()
            for place, figure in zip(axes.flat, figures, strict=False):
                _label_forms(place, figure, found)  # once the panels share their limits
            metadata = {"Date": None} if path.suffix == ".svg" else None
            with atomic_writer(path) as file:
                picture.savefig(file, format=path.suffix[1:], metadata=metadata)
        finally:
            pyplot.close(picture)


def _matplotlib() -> Any:
    """Return the matplotlib module, with a backend that needs no screen."""
    try:
        import matplotlib
    except ImportError as error:
        raise BadInput(f"plots need matplotlib: install it with '{pip_install('matplotlib')}'") from error
    matplotlib.use("agg")
    return matplotlib


def _margins(size: tuple[float, float], columns: int) -> dict[str, float]:
    """Return the margins of the panels, which leave room for the labels at their right."""
    width, height = size
    return {
        "left": 0.75 / width,
        "right": 1 - (_LABELS + 0.1) / width,
        "bottom": 0.5 / height,
        "top": 1 - 0.55 / height,
        "wspace": (_LABELS + 0.2) / ((width - 0.85 - columns * _LABELS) / columns),
        "hspace": 0.35,
    }


def _panel(axes: _Axes, figure: Figure, found: Mapping[str, Look]) -> None:
    marks_by_form = _by_form(figure)
    for number, (form, marks) in enumerate(marks_by_form.items()):
        style = _style(found[form.name])
        if figure.kind == "dots":
            marks = [mark._replace(y=float(number)) for mark in marks]
        elif figure.kind == "points" and not figure.joined:
            style["linestyle"] = "none"
        bars = _bars(marks, is_of_x=figure.kind == "dots")
        errors = {"xerr" if figure.kind == "dots" else "yerr": bars} if bars else {}
        axes.errorbar([mark.x for mark in marks], [mark.y for mark in marks], capsize=2, **errors, **style)
    if figure.path:
        x, y = zip(*figure.path, strict=True)
        axes.plot(x, y, color="grey", linewidth=0.8, linestyle="--", zorder=0)
    if figure.rule is not None:
        (axes.axvline if figure.kind == "dots" else axes.axhline)(figure.rule, color="grey", linewidth=0.8)
    _set_axis(axes, "x", figure.x)
    if figure.kind == "dots":
        axes.invert_yaxis()
        axes.set_yticks([])
    else:
        _set_axis(axes, "y", figure.y)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(_wrapped(figure.title), fontsize="medium", loc="left")


def _by_form(figure: Figure) -> dict[Form, list[Mark]]:
    by_form: dict[Form, list[Mark]] = {}
    for mark in figure.marks:
        by_form.setdefault(mark.form, []).append(mark)
    return by_form


def _bars(marks: Sequence[Mark], is_of_x: bool) -> list[list[float]] | None:
    """Return the lengths of the intervals below and above the marks; None if no mark has one."""
    if all(mark.low is None or mark.high is None for mark in marks):
        return None
    below, above = [], []
    for mark in marks:
        value = mark.x if is_of_x else mark.y
        # The interval of a median does not have to contain the point that is drawn.
        below.append(max(value - (value if mark.low is None else mark.low), 0.0))
        above.append(max((value if mark.high is None else mark.high) - value, 0.0))
    return [below, above]


def _set_axis(axes: _Axes, which: str, axis: Axis) -> None:
    """Give an axis its scale, its label and readable ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    drawn = axes.xaxis if which == "x" else axes.yaxis
    form = _FORMATS[axis.unit]
    axes.set(**{f"{which}label": axis.label, f"{which}scale": "log" if axis.is_logarithmic else "linear"})
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    if axis.includes is not None:
        axes.set(**{f"{which}lim": (min(low, axis.includes), max(high, axis.includes))})
    if axis.ticks:
        if len(axis.ticks) == 1:
            axes.set(**{f"{which}lim": (axis.ticks[0] / 2, axis.ticks[0] * 2)})
        ticks = list(axis.ticks)
        drawn.set_ticks(ticks, _apart(ticks, axes.get_xlim() if which == "x" else axes.get_ylim(), form))
    else:
        low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
        is_short = high / low < 8 if axis.is_logarithmic and low > 0 else True
        by_steps = MaxNLocator(5, steps=[1, 2, 5, 10])
        drawn.set_major_locator(by_steps if is_short else LogLocator(subs=(1, 2, 5) if high / low < 1e3 else (1,)))
        drawn.set_major_formatter(FuncFormatter(lambda value, _position: form(value)))
    drawn.set_minor_locator(NullLocator())


def _apart(ticks: Sequence[float], ends: tuple[float, float], form: Callable[[float], str]) -> list[str]:
    """Return labels of ticks on a logarithmic axis, empty for those too close to the one before."""
    low, high = map(math.log, ends)
    labels, last = [], -math.inf
    for tick in ticks:
        has_room = math.log(tick) - last >= _LEAST_DISTANCE * (high - low)
        labels.append(form(tick) if has_room else "")
        last = math.log(tick) if has_room else last
    return labels


def _style(look: Look) -> dict[str, Any]:
    colour = looks.COLOURS[look.colour] if look.colour < len(looks.COLOURS) else looks.GREY
    return {"color": colour, "marker": _MARKERS[looks.MARKS[look.mark]], "markersize": 5, "linewidth": 1.4}


def _label_forms(axes: _Axes, figure: Figure, found: Mapping[str, Look]) -> None:
    """Write the name of each form at the right of a panel, with a line to its last mark."""
    labels = figure.labels
    ends = {form: max(marks, key=lambda mark: mark.x) for form, marks in _by_form(figure).items()}
    places = {
        form: (axes.transData + axes.transAxes.inverted()).transform(
            (mark.x, float(number) if figure.kind == "dots" else mark.y)
        )
        for number, (form, mark) in enumerate(ends.items())
    }
    height = axes.get_window_extent().height / axes.figure.dpi  # inches
    spread = _spread([place[1] for place in places.values()], _LINE / height)
    for (form, (x, y)), place in zip(places.items(), spread, strict=True):
        colour = _style(found[form.name])["color"]
        leader = {"color": colour, "alpha": 0.4, "linewidth": 0.7, "clip_on": False}
        axes.plot([x, 1.02], [y, place], transform=axes.transAxes, **leader)
        text = {"transform": axes.transAxes, "va": "center", "fontsize": 8, "color": colour, "parse_math": False}
        axes.text(1.03, place, _shortened(labels[form]), **text)


def _shortened(label: str) -> str:
    return label if len(label) <= _LETTERS else f"{label[: _LETTERS - 1].rstrip(' ,')}…"


def _wrapped(title: str) -> str:
    """Return a title with what is drawn in its first line and the conditions below."""
    return "\n".join(line for part in title.split(": ", 1) for line in textwrap.wrap(part, _TITLE))


def _spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Return positions between 0 and 1 that are at least `gap` apart, each near the one that is wanted."""
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    placed = list(wanted)
    last = -gap
    for number in order:
        placed[number] = last = max(wanted[number], last + gap)
    following = 1 + gap
    for number in reversed(order):
        placed[number] = following = min(placed[number], following - gap)
    return placed
