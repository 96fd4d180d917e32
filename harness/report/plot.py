"""A picture of the comparison: speed-up over full softmax against the size of the vocabulary, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.report.rows import Record
from impls.errors import BadInput

_MARKERS = {"torch": "o", "tensorflow": "s", "jax": "^", "numpy": "x"}
_DASHES = {"torch": "-", "tensorflow": "--", "jax": ":", "numpy": "-."}


def speed(records: Sequence[Record], path: Path) -> None:
    """Write the figure to `path`; its ending chooses the format (svg, png, pdf).

    Raises:
        BadInput: matplotlib is missing, the ending is unknown, or no layer was timed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise BadInput("plots need matplotlib: install it with 'pip install -c constraints.txt matplotlib'") from error
    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "vocabench"  # the same rows give the same file
    from matplotlib import pyplot

    timed = [r for r in records if r["quantity"] == "layer_seconds" and r["agreement"] == "agree"]
    lines: dict[tuple[str, str], list[Record]] = {}
    for record in timed:
        if record["method"] != "full_softmax":
            lines.setdefault((f"{record['method']} {record['options']}".strip(), record["framework"]), []).append(
                record
            )
    if not lines:
        raise BadInput("nothing to plot: allowed: a run that timed a layer besides full softmax, and agrees")
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    methods = list(dict.fromkeys(method for method, _ in lines))
    for (method, framework), found in lines.items():
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
            label=f"{method}, {framework}",
        )
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="vocabulary (words)", ylabel="times faster than full softmax")
    sizes = sorted({record["vocab"] for record in timed})
    axes.set_xticks(sizes, [f"{size // 1000}k" for size in sizes], minor=False)
    axes.minorticks_off()
    ticks = [1, 2, 5, 10, 20, 50, 100, 200]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.legend(fontsize="small", frameon=False, ncols=2)
    first = timed[0]
    axes.set_title(
        f"Forward and backward of the output layer, N={first['tokens']:,}, D={first['dim']}, {first['precision']}, "
        f"{first['device']}",
        fontsize="medium",
    )
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except ValueError as error:
        raise BadInput(f"plot {path}: {error}") from error
    finally:
        pyplot.close(figure)
