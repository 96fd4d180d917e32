"""A picture of the comparison: speed-up over full softmax against the size of the vocabulary, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.report import _svg
from harness.report.rows import Record
from harness.report.table import full_name
from harness.tasks._paired import BASELINE
from harness.whole_file import written_whole
from impls.errors import BadInput

_MARKERS = {"torch": "o", "tensorflow": "s", "jax": "^", "numpy": "x"}
_DASHES = {"torch": "-", "tensorflow": "--", "jax": ":", "numpy": "-."}
_INSIDE = 6  # lines whose names have room within the axes
_ENDINGS = (".svg", ".png", ".pdf")


def speed(records: Sequence[Record], path: Path) -> None:
    """Write the figure to `path`; its ending chooses the format.

    Raises:
        BadInput: matplotlib is missing, the ending is unknown, or no layer was timed.
    """
    if path.suffix not in _ENDINGS:
        raise BadInput(f"plot {path}: allowed: a name that ends in {', '.join(_ENDINGS)}")
    matplotlib = _svg.matplotlib()
    matplotlib.rcParams["svg.hashsalt"] = "vocabench"  # the same rows give the same file
    from matplotlib import pyplot

    timed = [
        record
        for record in records
        if record["quantity"] == "layer_seconds"
        and record["agreement"] == "agree"
        and record["ratio_to_full_softmax"] is not None
    ]
    conditions = {_condition(record) for record in timed}
    lines: dict[tuple[str, ...], list[Record]] = {}
    for record in timed:
        if record["method"] != BASELINE:
            parts = (full_name(record), record["framework"], *([_condition(record)] if len(conditions) > 1 else []))
            lines.setdefault(parts, []).append(record)
    if not lines:
        raise BadInput("nothing to plot: allowed: a run that timed a layer besides full softmax, and agrees")
    below_plot = len(lines) > _INSIDE
    height = 4.2 + 0.2 * math.ceil(len(lines) / 2) * below_plot
    figure, axes = pyplot.subplots(figsize=(7, height), layout="constrained")
    methods = list(dict.fromkeys(parts[0] for parts in lines))
    for parts, found in lines.items():
        method, framework, *_ = parts
        found = sorted(found, key=lambda record: record["vocab"])
        ratio = [record["ratio_to_full_softmax"] for record in found]
        below = [r - record["ratio_low"] for r, record in zip(ratio, found, strict=True)]
        above = [record["ratio_high"] - r for r, record in zip(ratio, found, strict=True)]
        axes.errorbar(
            [record["vocab"] for record in found],
            ratio,
            yerr=[[max(0.0, value) for value in below], [max(0.0, value) for value in above]],
            color=f"C{methods.index(method)}",
            marker=_MARKERS.get(framework, "."),
            linestyle=_DASHES.get(framework, "-"),
            capsize=2,
            label=", ".join(parts),
        )
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="vocabulary (words)", ylabel="times faster than full softmax")
    sizes = sorted({record["vocab"] for record in timed})
    axes.set_xticks(sizes, [_svg.thousands(size) for size in sizes], minor=False)
    axes.minorticks_off()
    ticks = [0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200]
    low, high = axes.get_ylim()
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(low, high)
    look: dict[str, Any] = {"fontsize": "small", "frameon": False, "ncols": 2}
    if below_plot:
        figure.legend(loc="outside lower center", **look)
    else:
        axes.legend(**look)
    title = "Forward and backward of the output layer"
    axes.set_title(f"{title}, {conditions.pop()}" if len(conditions) == 1 else title, fontsize="medium")
    try:
        with written_whole(path) as file:
            figure.savefig(file, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
    finally:
        pyplot.close(figure)


def _condition(record: Record) -> str:
    return f"N={record['tokens']:,}, D={record['dim']}, {record['precision']}, {record['device']}"
