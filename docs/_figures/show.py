"""The formats in which pages show a figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from docs._figures.published import Missing, NotFound, Published, Selection
from vocabench.harness.report import units
from vocabench.harness.report.rows import Record, ratio_of, value_of
from vocabench.harness.tasks.shared.paired import BASELINE

FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX", "numpy": "NumPy"}


def show(form: str, selection: Selection, published: Published) -> str:
    """Return the figure that fits a selection in the format `form`.

    Raises:
        NotFound: No figure or several fit, or there is no such format.
    """
    baseline = {name: value for name, value in selection.items() if name != "options"} | {"method": BASELINE}
    if form == "mean_excess":
        ratio = _mean(published.all_that_fit(selection)) / _mean(published.all_that_fit(baseline))
        return _RELATIVE["excess"](ratio)
    if form == "range":
        return _range(published.all_that_fit(selection))
    record = published.one(selection)
    if form in _RELATIVE:
        return _RELATIVE[form](value_of(record) / value_of(published.one(baseline)))
    if form not in _FORMATS:
        allowed = ", ".join((*_FORMATS, *_RELATIVE, "mean_excess", "range"))
        raise NotFound(f"unknown format {form!r}: allowed: {allowed}")
    return _FORMATS[form](record)


def label(field: str, value: Any) -> str:
    """Return the value of a field as the first cells of a line show it."""
    if field == "framework":
        return FRAMEWORKS[value]
    if field == "method":
        return f"`{value}`"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _mean(records: Sequence[Record]) -> float:
    """Return the mean over frameworks."""
    if not records:
        raise Missing("0 figures: allowed: one of each framework")
    if len({record["framework"] for record in records}) != len(records):
        raise NotFound(f"{len(records)} figures: allowed: one of each framework")
    return statistics.fmean(map(value_of, records))


def _ratio(record: Record) -> str:
    found = ratio_of(record)
    if found is None:
        raise NotFound(f"{record['quantity']} of {record['method']} has no ratio: allowed: a paired time")
    value, low, high = map(units.ratio, found)
    return f"{'A/A' if record['method'] == BASELINE else f'{value}x'} [{low}, {high}]"


def _range(records: Sequence[Record]) -> str:
    """Return the lowest and the highest ratio of several records."""
    if not records:
        raise Missing("0 figures: allowed: at least one")
    ordered = sorted(records, key=lambda record: (ratio_of(record) or (0.0,))[0])
    return f"{_ratio(ordered[0])} to {_ratio(ordered[-1])}"


def _short_ratio(record: Record) -> str:
    found = ratio_of(record)
    if found is None:
        raise NotFound(f"{record['quantity']} of {record['method']} has no ratio: allowed: a paired time")
    return f"{units.ratio(found[0])}x"


def _baseline(record: Record) -> str:
    """Return the time of full softmax next to which a layer was timed."""
    if record["baseline_seconds"] is None:
        raise NotFound(f"{record['quantity']} of {record['method']} has no baseline: allowed: a paired time")
    return units.seconds(record["baseline_seconds"])


def _mib(record: Record) -> str:
    return f"{value_of(record) / 2**20:,.0f} MiB"


def _perplexity(record: Record) -> str:
    return f"{value_of(record):.2f}"


def _perplexity_over_seeds(record: Record) -> str:
    """Return a perplexity with its interval over several seeds."""
    low, high = record["mean_low"], record["mean_high"]
    if low is None or high is None:
        raise NotFound(f"{record['quantity']} of {record['method']} has no interval: allowed: several seeds")
    return f"{value_of(record):.2f} [{low:.2f}, {high:.2f}]"


def _difference_over_seeds(record: Record) -> str:
    """Return the difference to full softmax paired by seed, with its interval and verdict."""
    value, low, high = record["seed_difference"], record["seed_difference_low"], record["seed_difference_high"]
    if value is None or low is None or high is None:
        raise NotFound(f"{record['quantity']} of {record['method']} has no difference by seed: allowed: several seeds")
    return f"{100 * value:+.1f} % [{100 * low:+.1f}, {100 * high:+.1f}], {record['verdict']}"


def _percent(record: Record) -> str:
    low, high = record["mean_low"], record["mean_high"]
    interval = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{100 * value_of(record):.1f} %{interval}"


def _thousands(record: Record) -> str:
    return f"{value_of(record) / 1000:,.0f}"


def _points(record: Record, score: str) -> list[float]:
    """Return a score after each epoch."""
    curve: Any = record.get("curve") or []
    points = [point[score] for point in curve if point.get(score) is not None]
    if not points:
        raise NotFound(f"{record['quantity']} of {record['method']} has no curve: allowed: a trained model")
    return points


def _curve(score: str, decimals: int) -> Callable[[Record], str]:
    return lambda record: ", ".join(f"{point:.{decimals}f}" for point in _points(record, score))


def _best(record: Record) -> str:
    """Return the lowest held-out perplexity of all epochs."""
    return f"{min(_points(record, 'perplexity')):.2f}"


def _best_epoch(record: Record) -> str:
    points = _points(record, "perplexity")
    return str(1 + points.index(min(points)))


def _seconds(record: Record) -> str:
    return units.seconds(value_of(record))


def _whole_seconds(record: Record) -> str:
    return f"{value_of(record):,.0f} s"


def _size(record: Record) -> str:
    return units.size(value_of(record))


def _roofline(record: Record) -> str:
    return units.share(value_of(record))


def _tera(record: Record) -> str:
    return f"{value_of(record) / 1e12:.3g}"


def _two_decimals(record: Record) -> str:
    return f"{value_of(record):.2f}"


_FORMATS: dict[str, Callable[[Record], str]] = {
    "baseline": _baseline,
    "best": _best,
    "best_epoch": _best_epoch,
    "curve": _curve("perplexity", 2),
    "curve_1": _curve("perplexity", 1),
    "difference_over_seeds": _difference_over_seeds,
    "losses": _curve("train_loss", 2),
    "mib": _mib,
    "percent": _percent,
    "perplexity": _perplexity,
    "perplexity_over_seeds": _perplexity_over_seeds,
    "ratio": _ratio,
    "roofline": _roofline,
    "seconds": _seconds,
    "short_ratio": _short_ratio,
    "size": _size,
    "tera": _tera,
    "thousands": _thousands,
    "two_decimals": _two_decimals,
    "whole_seconds": _whole_seconds,
}

# Relative to full softmax under the same conditions.
_RELATIVE: dict[str, Callable[[float], str]] = {
    "excess": lambda ratio: f"{100 * (ratio - 1):+.1f} %",
    "fraction": lambda ratio: f"{ratio:.2f}",
}
