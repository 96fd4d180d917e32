"""A plot of the comparison: speed-up over full softmax against the size of the vocabulary, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vocabench.harness.atomic_write import atomic_writer
from vocabench.harness.installing import pip_install
from vocabench.harness.report import looks
from vocabench.harness.report.figures import by_vocabulary
from vocabench.harness.report.looks import Look
from vocabench.harness.report.rows import Record, error_bars
from vocabench.harness.report.units import thousands
from vocabench.harness.tasks.shared.paired import BASELINE
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
_WIDTH, _HEIGHT = 3.5, 3.6  # inches of a panel, without the labels of its lines
_LABELS = 2.2  # inches beside a panel
_LINE = 0.17  # height of a label in inches
_MOST_PANELS = 2  # in a row
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_LEAST_DISTANCE = 0.09  # between two labelled sizes, as a share of the axis
_ENDINGS = (".svg", ".png", ".pdf")

_Panel = tuple[str, str]  # framework and condition
_Axes = Any  # matplotlib's type; matplotlib is imported only for drawing


def speed(records: Sequence[Record], path: Path) -> None:
    """Write the plot to a file, in the format of its extension.

    There is a panel for each framework and condition, and every line is labelled at its right end. Colours and marks
    are those of the report.

    Raises:
        BadInput: matplotlib is not installed, the extension is unknown, or no layer was timed.
    """
    if path.suffix not in _ENDINGS:
        raise BadInput(f"plot {path}: allowed: a name that ends in {', '.join(_ENDINGS)}")
    matplotlib = _matplotlib()
    panels = _panels(records)
    if not panels:
        raise BadInput("nothing to plot: allowed: a run that timed a layer besides full softmax, and agrees")
    from matplotlib import pyplot

    looks_by_name = looks.of_forms((record["method"], record["options"]) for record in records)
    most = max(len(lines) for lines in panels.values())
    columns = min(len(panels), _MOST_PANELS)
    rows = math.ceil(len(panels) / columns)
    size = (columns * (_WIDTH + _LABELS), rows * max(_HEIGHT, _LINE * most + 1))
    settings = {
        "svg.hashsalt": "vocabench",  # for reproducible files
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 9,
    }
    with matplotlib.rc_context(settings):
        figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, sharey=True)
        try:
            figure.subplots_adjust(**_margins(size, columns))
            for place, (panel, lines) in zip(axes.flat, panels.items(), strict=False):
                _draw(place, panel, lines, looks_by_name)
            for empty in list(axes.flat)[len(panels) :]:
                empty.set_axis_off()
            for place, lines in zip(axes.flat, panels.values(), strict=False):
                _label_ends(place, lines, looks_by_name)  # once the panels share their limits
            metadata = {"Date": None} if path.suffix == ".svg" else None
            with atomic_writer(path) as file:
                figure.savefig(file, format=path.suffix[1:], metadata=metadata)
        finally:
            pyplot.close(figure)


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


def _panels(records: Sequence[Record]) -> dict[_Panel, dict[str, list[Record]]]:
    """Return the records of each panel by the name of their line, the panel with most sizes first."""
    shown = [
        record
        for record in records
        if record["agreement"] == "agree"
        and record["ratio_to_full_softmax"] is not None
        and record["method"] != BASELINE
    ]
    panels = {
        (framework, f"N={tokens:,}, D={dim}, {precision}, {device}"): lines
        for (framework, dim, tokens, precision, device), lines in by_vocabulary(shown, "layer_seconds")
    }
    return dict(sorted(panels.items(), key=lambda panel: -max(map(len, panel[1].values()))))


def _draw(axes: _Axes, panel: _Panel, lines: Mapping[str, Sequence[Record]], found: Mapping[str, Look]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="vocabulary (words)")
    sizes = sorted({record["vocab"] for points in lines.values() for record in points})
    if len(sizes) == 1:
        axes.set_xlim(sizes[0] / 2, sizes[0] * 2)
    for name, points in lines.items():
        ratio, bars = error_bars(points)
        axes.errorbar([record["vocab"] for record in points], ratio, yerr=bars, capsize=2, **_style(found[name]))
    framework, condition = panel
    axes.set_title(f"{framework}\n{condition}", fontsize="medium", loc="left")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    if axes.get_subplotspec().is_first_col():
        axes.set_ylabel("times as fast as full softmax")
    low, high = map(math.log, axes.get_xlim())
    labels, last = [], -math.inf
    for size in sizes:
        room = math.log(size) - last >= _LEAST_DISTANCE * (high - low)
        labels.append(thousands(size) if room else "")
        last = math.log(size) if room else last
    axes.set_xticks(sizes, labels)
    limits = axes.get_ylim()
    axes.set_yticks(_TICKS, [f"{tick:g}x" for tick in _TICKS])
    axes.minorticks_off()
    axes.set_ylim(limits)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _style(look: Look) -> dict[str, Any]:
    colour = looks.COLOURS[look.colour] if look.colour < len(looks.COLOURS) else looks.GREY
    return {"color": colour, "marker": _MARKERS[looks.MARKS[look.mark]], "markersize": 5, "linewidth": 1.4}


def _label_ends(axes: _Axes, lines: Mapping[str, Sequence[Record]], found: Mapping[str, Look]) -> None:
    """Write the name of each line next to its right end, apart from the others."""
    names = list(lines)
    labels = looks.labels((lines[name][0]["method"], lines[name][0]["options"]) for name in names)
    height = axes.get_window_extent().height / axes.figure.dpi  # inches
    bottom, top = map(math.log, axes.get_ylim())
    wanted = [(math.log(lines[name][-1]["ratio_to_full_softmax"] or 1) - bottom) / (top - bottom) for name in names]
    for name, at, place in zip(names, wanted, _spread(wanted, _LINE / height), strict=True):
        last = lines[name][-1]
        text = labels[last["method"], last["options"]]
        x = axes.transLimits.transform(axes.transScale.transform((last["vocab"], 1)))[0]
        colour = _style(found[name])["color"]
        leader = {"color": colour, "alpha": 0.4, "linewidth": 0.7, "clip_on": False}
        axes.plot([x, 1.02], [at, place], transform=axes.transAxes, **leader)
        axes.text(1.03, place, text, transform=axes.transAxes, va="center", fontsize=8, color=colour, parse_math=False)


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
