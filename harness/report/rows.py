"""Stored rows as flat records, one for each quantity, with the keys of JSON and CSV tables."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from vocabench.harness import registry
from vocabench.harness.compare.matching import EFFORT, ERROR_RATES, Scores, default_settings, identify, sample_scores
from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.metrics.bootstrap import Difference, differences
from vocabench.harness.run.doubts import Doubt, doubts
from vocabench.harness.run.rows import Measurement, Ratio, Row
from vocabench.harness.tasks.shared.paired import BASELINE


class SeedFields(TypedDict, total=False):
    """Fields of a record that depend on other records of the same model, with other seeds."""

    value: float | None
    low: float | None
    high: float | None
    ratio_to_full_softmax: float | None
    ratio_low: float | None
    ratio_high: float | None
    seeds: int
    mean: float | None
    mean_low: float | None
    mean_high: float | None
    seed_difference: float | None
    seed_difference_low: float | None
    seed_difference_high: float | None
    verdict: str


class Record(TypedDict):
    """One quantity of a row. A row without measurements has one record, whose `quantity` is None."""

    suite: str
    task: str
    dataset: str
    framework: str
    method: str
    vocab: int
    dim: int
    tokens: int
    device: str
    devices: int  # over which words are split
    precision: str
    seed: int
    quantity: str | None
    value: float | None
    unit: str | None
    better: str | None
    ratio_to_full_softmax: float | None
    ratio_low: float | None
    ratio_high: float | None
    agreement: str  # a verdict, "unchecked", or "none" for a model without a layer
    status: str
    options: str
    low: float | None
    high: float | None
    dataset_sha256: str
    formulation: str | None
    message: str
    objective: str
    split: str
    units: str
    difference: float | None  # to full softmax on the same samples
    difference_low: float | None
    difference_high: float | None
    p_value: float | None
    processes: int | None  # in which a time was measured
    spread_class: str | None  # quantities whose spread between processes is pooled with this one
    spread_of_ratio: float | None  # standard deviation between processes of the logarithm, pooled over these
    spread_of_time: float | None
    baseline_seconds: float | None  # median of full softmax in the same rounds
    baseline_form: str | None
    busy_cores: float | None  # used by others, if that was too many for the time to be reliable
    baseline_factor: float | None  # time of full softmax relative to that in other cells, if it is off
    seeds: int  # number of trainings of the model that differ by their seed
    mean: float | None  # over these seeds, with the ends of its 95 % interval
    mean_low: float | None
    mean_high: float | None
    seed_difference: float | None  # to full softmax, paired by seed; relative for perplexities
    seed_difference_low: float | None
    seed_difference_high: float | None
    verdict: str  # of this difference: level, better, worse or one seed
    trial: str  # all of the cell but its method, options and seed
    apart: str  # what distinguishes the row from others on the same line of a table, such as "seed 1"
    apart_but_seed: str


KEYS = tuple(Record.__annotations__)

# Fields that tables show in a title or a column, next to method, options and framework.
_SHOWN = {
    "timing": ("vocab", "dim", "tokens", "precision", "device"),
    "parallel": ("devices", "vocab", "dim", "tokens", "precision", "device"),
    "trained_layer": ("dataset", "vocab", "dim", "tokens", "precision", "device"),
    "agreement": ("precision",),
}
_SHOWN_OF_MODELS = ("dataset", "vocab", "objective", "split", "units")


@dataclass(frozen=True)
class Filter:
    """Selection of the records that a table shows; None selects all."""

    frameworks: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    vocab: Sequence[int] | None = None
    tasks: Sequence[str] | None = None

    def keeps(self, record: Mapping[str, object]) -> bool:
        """Return whether all criteria select the record, or the cell as JSON."""
        criteria = (
            (self.frameworks, record["framework"]),
            (self.methods, record["method"]),
            (self.vocab, record["vocab"]),
            (self.tasks, record["task"]),
        )
        return all(allowed is None or value in allowed for allowed, value in criteria)


def quantity_of(record: Record) -> str:
    """Return the quantity of a record that has one."""
    assert record["quantity"] is not None
    return record["quantity"]


def value_of(record: Record) -> float:
    """Return the value of a record whose value is finite."""
    assert record["value"] is not None
    return record["value"]


def is_doubtful(record: Record) -> bool:
    """Return whether a busy machine or the time of full softmax speaks against a time."""
    return record["busy_cores"] is not None or record["baseline_factor"] is not None


def is_held_out(record: Record) -> bool:
    """Return whether a score is of data that the model was not trained on."""
    return not record["split"].startswith("train")


def ratio_of(record: Record) -> tuple[float, float, float] | None:
    """Return the ratio to full softmax with the ends of its interval, if the record has one."""
    ratio, low, high = record["ratio_to_full_softmax"], record["ratio_low"], record["ratio_high"]
    return None if ratio is None or low is None or high is None else (ratio, low, high)


def error_bars(records: Iterable[Record]) -> tuple[list[float], list[list[float]]]:
    """Return the ratios of records that have one, and the lengths of their intervals below and above them."""
    ratios = [ratio for record in records if (ratio := ratio_of(record)) is not None]
    below = [max(0.0, value - low) for value, low, _ in ratios]
    above = [max(0.0, high - value) for value, _, high in ratios]
    return [value for value, _, _ in ratios], [below, above]


def full_name(record: Record) -> str:
    """Return the method with its options, and what distinguishes it from others with the same name."""
    apart = f" ({record['apart']})" if record["apart"] else ""
    return f"{record['method']} {record['options']}".strip() + apart


def groups(records: Iterable[Record], *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    """Return the records by their values of `keys`, in order of appearance."""
    grouped: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        fields: Mapping[str, Any] = record
        grouped.setdefault(tuple(fields[key] for key in keys), []).append(record)
    return grouped


def flatten(rows: Iterable[Row]) -> list[Record]:
    """Return a record for each quantity of each row; a row without measurements gives one record without a quantity.

    A timing row has the verdict of a check at its own size. Other rows take the verdict of the agreement row with the
    same framework, method, options, precision and device, if the run has one.
    """
    rows = list(rows)
    verdicts: dict[tuple[str, ...], str] = {}
    for row in rows:
        verdict = row.verdict if row.cell.task == "agreement" else ""
        if verdict and verdicts.get(_identity(row)) != DISAGREE:  # one seed or size that disagrees is decisive
            verdicts[_identity(row)] = verdict
    # The agreement cell without options also covers the variants: it checks all choices that change the arithmetic.
    plain = {key[:-1]: verdict for key, verdict in verdicts.items() if not key[-1]}
    baselines = {trial(row): row for row in rows if row.cell.method == BASELINE and _has_pairs(row)}
    layers = frozenset(registry.methods())
    records = []
    for row, apart, reasons in zip(rows, _set_apart(rows), doubts(rows), strict=True):
        identity = _identity(row)
        verdict = row.verdict or verdicts.get(identity) or plain.get(identity[:-1]) or "unchecked"
        verdict = verdict if row.cell.method in layers else "none"
        baseline = baselines.get(trial(row)) if baselines and _has_pairs(row) else None
        trial_but_seed = hashlib.sha256(trial(row, "seed").encode()).hexdigest()[:16]
        found = _differences(row, baseline)
        for measurement in row.measurements or [None]:
            difference = found.get(measurement.quantity) if measurement is not None else None
            doubt = reasons.get(measurement.quantity, Doubt()) if measurement is not None else Doubt()
            records.append(_record(row, measurement, difference, verdict, trial_but_seed, apart, doubt))
    return records


@dataclass(frozen=True)
class _Apart:
    """What distinguishes a row from others, with and without its seed."""

    label: str = ""
    label_but_seed: str = ""


def set_apart(rows: Sequence[Row]) -> list[str]:
    """Return for each row what distinguishes it from other rows on the same line of the same table, such as "seed 1".

    Empty for a row that is alone on its line, and for a row without measurements.
    """
    return [apart.label for apart in _set_apart(rows)]


def _set_apart(rows: Sequence[Row]) -> list[_Apart]:
    # Rows of an earlier version lack later settings, which had their defaults then.
    fields = [{**default_settings(row.cell.task), **row.cell.settings, **vars(row.cell)} for row in rows]
    lines: dict[tuple[Hashable, ...], list[int]] = {}
    for number, (row, cell) in enumerate(zip(rows, fields, strict=True)):
        if row.measurements:
            names = ("task", "framework", "method", "options", *_SHOWN.get(cell["task"], _SHOWN_OF_MODELS))
            lines.setdefault(tuple(_comparable(cell.get(name)) for name in names), []).append(number)
    labels = [_Apart()] * len(rows)
    for line in lines.values():
        if len(line) == 1:
            continue
        differ = _distinguishing([fields[number] for number in line])
        for number in line:
            parts = {name: f"{name} {_brief(fields[number].get(name))}" for name in differ}
            label = ", ".join(parts.values())
            parts.pop("seed", None)
            labels[number] = _Apart(label, ", ".join(parts.values()))
    return labels


def _distinguishing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields by which rows differ: without the effort of the measurement, if the others tell them apart."""

    def values(row: Mapping[str, Any], names: Iterable[str]) -> tuple[Hashable, ...]:
        return tuple(_comparable(row.get(name)) for name in names)

    names = dict.fromkeys(name for row in rows for name in row if name != "settings")
    differ = [name for name in names if len({values(row, [name]) for row in rows}) > 1]
    without_effort = [name for name in differ if name not in EFFORT]
    is_enough = len({values(row, without_effort) for row in rows}) == len({values(row, differ) for row in rows})
    return without_effort if is_enough else differ


def _comparable(value: Any) -> Hashable:
    """Return what two values share if and only if they are the same JSON; 1, 1.0 and true are not."""
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, int | float):
        return type(value), value
    return list, json.dumps(value, sort_keys=True)


def _brief(value: Any) -> str:
    text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _identity(row: Row) -> tuple[str, ...]:
    cell = row.cell
    return (cell.framework, cell.method, cell.precision, cell.device, cell.variant)


def trial(row: Row, *ignored: str) -> str:
    """Return what two systems must share for a paired comparison: all that `identify` compares but method and options.

    Args:
        ignored: Further fields to leave out.
    """
    return identify(row.cell, method="", options={}, **dict.fromkeys(ignored))


def _is_paired(quantity: str) -> bool:
    """Whether a quantity is compared with that of full softmax sample by sample."""
    return quantity.startswith("rouge") or quantity in ERROR_RATES


def _has_pairs(row: Row) -> bool:
    return any(_is_paired(measurement.quantity) for measurement in row.measurements)


def _differences(row: Row, baseline: Row | None) -> dict[str, Difference]:
    """Return the differences of scores to those of full softmax on the same samples, by the paired bootstrap."""
    if baseline is None:
        return {}
    baseline_scores = {m.quantity: sample_scores(m) for m in baseline.measurements if _is_paired(m.quantity)}
    pairs: dict[bytes, dict[str, tuple[Scores, Scores]]] = {}  # by their sizes: the same resamples serve all of them
    for measurement in row.measurements:
        quantity = measurement.quantity
        if quantity in baseline_scores:
            scores = sample_scores(measurement)
            if scores.pair_with(baseline_scores[quantity]):
                pairs.setdefault(scores.sizes_S.tobytes(), {})[quantity] = scores, baseline_scores[quantity]
    found: dict[str, Difference] = {}
    for scored in pairs.values():
        first_SQ, second_SQ = (np.stack([pair[side].values_S for pair in scored.values()], 1) for side in (0, 1))
        sizes_S = next(iter(scored.values()))[0].sizes_S
        found |= dict(zip(scored, differences(first_SQ, second_SQ, sizes_S=sizes_S), strict=True))
    return found


def _record(
    row: Row,
    measurement: Measurement | None,
    difference: Difference | None,
    verdict: str,
    trial_but_seed: str,
    apart: _Apart,
    doubt: Doubt,
) -> Record:
    cell, ratio = row.cell, _ratio(measurement)
    detail: Mapping[str, Any] = measurement.detail if measurement is not None else {}
    spread = detail.get("spread", {})
    baseline = [sample for sample in ratio.baseline_samples if math.isfinite(sample)]
    return {
        "suite": cell.suite,
        "task": cell.task,
        "dataset": cell.dataset,
        "framework": cell.framework,
        "method": cell.method,
        "vocab": cell.vocab,
        "dim": cell.dim,
        "tokens": cell.tokens,
        "device": cell.device,
        "devices": cell.settings.get("devices", 1),
        "precision": cell.precision,
        "seed": cell.seed,
        "quantity": measurement and measurement.quantity,
        "value": measurement and measurement.finite_value,
        "unit": measurement and measurement.unit,
        "better": measurement and measurement.better,
        "ratio_to_full_softmax": ratio.value,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "agreement": verdict,
        "status": row.status,
        "options": cell.variant,
        "low": measurement and measurement.low,
        "high": measurement and measurement.high,
        "dataset_sha256": cell.dataset_sha256,
        "formulation": detail.get("formulation"),
        "message": row.message,
        "objective": cell.settings.get("objective", ""),
        "split": cell.settings.get("split", ""),
        "units": cell.settings.get("units", ""),
        "difference": difference and difference.interval.value,
        "difference_low": difference and difference.interval.low,
        "difference_high": difference and difference.interval.high,
        "p_value": difference and difference.p_value,
        "processes": len(detail.get("processes", ())) or None,
        "spread_class": spread.get("class"),
        "spread_of_ratio": spread.get("class_ratio_deviation"),
        "spread_of_time": spread.get("class_deviation"),
        "baseline_seconds": statistics.median(baseline) if baseline else None,
        "baseline_form": detail.get("baseline_form"),
        "busy_cores": doubt.busy_cores,
        "baseline_factor": doubt.baseline_factor,
        "seeds": 1,
        "mean": None,
        "mean_low": None,
        "mean_high": None,
        "seed_difference": None,
        "seed_difference_low": None,
        "seed_difference_high": None,
        "verdict": "",
        "trial": trial_but_seed,
        "apart": apart.label,
        "apart_but_seed": apart.label_but_seed,
    }


def _ratio(measurement: Measurement | None) -> Ratio:
    """Return the ratio to full softmax, which is shown only with its interval."""
    ratio = measurement.ratio if measurement is not None else None
    return Ratio() if ratio is None or None in (ratio.value, ratio.low, ratio.high) else ratio
