"""A plot of the comparison: speed-up over full softmax against the size of the vocabulary, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vocabench.harness.atomic_write import atomic_writer
from vocabench.harness.report import svg
from vocabench.harness.report.rows import Record, error_bars, full_name
from vocabench.harness.tasks.shared.paired import BASELINE
from vocabench.impls.errors import BadInput

_MARKERS = {"torch": "o", "tensorflow": "s", "jax": "^", "numpy": "x"}
_DASHES = {"torch": "-", "tensorflow": "--", "jax": ":", "numpy": "-."}
_FILL_STYLES = ("full", "none", "left", "right")  # of markers, one for each condition
_COLOURS = (*svg.COLOURS, "#7f7f7f", "#4b0082")
_WIDTH, _HEIGHT = 7, 4.2  # inches, without the legend
_ROW, _NAMES_A_ROW = 0.2, 2  # height of a row of the legend in inches, and its entries
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_LEAST_DISTANCE = 0.06  # between two labelled sizes, as a share of the axis
_ENDINGS = (".svg", ".png", ".pdf")

_Line = tuple[str, str, str]  # method with its options, framework, condition
_Axes = Any  # matplotlib's type; matplotlib is imported only for drawing


def speed(records: Sequence[Record], path: Path) -> None:
    """Write the plot to a file, in the format of its extension.

    Colours stand for methods, markers for frameworks and the filling of markers for conditions, so that the legend does
    not need an entry for each line.

    Raises:
        BadInput: matplotlib is not installed, the extension is unknown, or no layer was timed.
    """
    if path.suffix not in _ENDINGS:
        raise BadInput(f"plot {path}: allowed: a name that ends in {', '.join(_ENDINGS)}")
    matplotlib = svg.matplotlib()
    matplotlib.rcParams["svg.hashsalt"] = "vocabench"  # for reproducible files
    from matplotlib import pyplot

    lines = _lines(records)
    if not lines:
        raise BadInput("nothing to plot: allowed: a run that timed a layer besides full softmax, and agrees")
    methods, frameworks, conditions = (list(dict.fromkeys(names)) for names in zip(*lines, strict=True))
    styles: dict[str, dict[str, Any]] = {
        **{method: {"color": _COLOURS[i % len(_COLOURS)]} for i, method in enumerate(methods)},
        **{name: {"marker": _MARKERS.get(name, "."), "linestyle": _DASHES.get(name, "-")} for name in frameworks},
        **{name: {"fillstyle": _FILL_STYLES[i % len(_FILL_STYLES)]} for i, name in enumerate(conditions)},
    }
    legend = [methods, frameworks, conditions if len(conditions) > 1 else []]
    handles = [_sample(name, styles.get(name, {"linestyle": "none"})) for name in _by_columns(legend)]
    height = _HEIGHT + _ROW * len(handles) / _NAMES_A_ROW
    figure, axes = pyplot.subplots(figsize=(_WIDTH, height), layout="constrained")
    for parts, points in lines.items():
        _draw(axes, points, styles[parts[0]] | styles[parts[1]] | styles[parts[2]])
    _label(axes, sorted({record["vocab"] for points in lines.values() for record in points}))
    title = "Forward and backward of the output layer"
    axes.set_title(title if len(conditions) > 1 else f"{title}, {conditions[0]}", fontsize="medium")
    figure.legend(handles=handles, loc="outside lower center", fontsize="small", frameon=False, ncols=_NAMES_A_ROW)
    try:
        with atomic_writer(path) as file:
            figure.savefig(file, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
    finally:
        pyplot.close(figure)


def _lines(records: Sequence[Record]) -> dict[_Line, list[Record]]:
    """Return the points of each line, by the size of the vocabulary."""
    lines: dict[_Line, list[Record]] = {}
    for record in sorted(records, key=lambda record: record["vocab"] or 0):
        timed = record["quantity"] == "layer_seconds" and record["agreement"] == "agree"
        if timed and record["ratio_to_full_softmax"] is not None and record["method"] != BASELINE:
            parts = full_name(record), record["framework"], _condition(record)
            lines.setdefault(parts, []).append(record)
    return lines


def _draw(axes: _Axes, points: Sequence[Record], style: dict[str, Any]) -> None:
    ratio, bars = error_bars(points)
    axes.errorbar([record["vocab"] for record in points], ratio, yerr=bars, capsize=2, **style)


def _label(axes: _Axes, sizes: Sequence[int]) -> None:
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="vocabulary (words)", ylabel="times faster than full softmax")
    low, high = map(math.log, axes.get_xlim())
    labels, last = [], -math.inf
    for size in sizes:
        room = math.log(size) - last >= _LEAST_DISTANCE * (high - low)
        labels.append(svg.thousands(size) if room else "")
        last = math.log(size) if room else last
    axes.set_xticks(sizes, labels, minor=False)
    axes.minorticks_off()
    limits = axes.get_ylim()
    axes.set_yticks(_TICKS, [str(tick) for tick in _TICKS])
    axes.set_ylim(limits)


def _by_columns(groups: Sequence[Sequence[str]]) -> list[str]:
    """Return names in the order of a legend, column by column, so that each group starts a new row.

    Empty names fill incomplete rows.
    """
    rows = []
    for names in groups:
        padded = [*names, *[""] * (-len(names) % _NAMES_A_ROW)]
        rows += [padded[i : i + _NAMES_A_ROW] for i in range(0, len(padded), _NAMES_A_ROW)]
    return [name for column in zip(*rows, strict=True) for name in column]


def _sample(name: str, style: dict[str, Any]) -> Any:
    """Return an entry of the legend: a colour, a marker with its line style, a filling, or an empty entry."""
    from matplotlib.lines import Line2D

    shown: dict[str, Any] = {"color": "black", "label": name or " "}
    if "fillstyle" in style:
        shown |= {"marker": "o", "linestyle": "none"}
    return Line2D([], [], **(shown | style))


def _condition(record: Record) -> str:
    return f"N={record['tokens']:,}, D={record['dim']}, {record['precision']}, {record['device']}"
