"""Our figures as `against` sets them next to published ones: one for each quantity of a model, over its seeds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vocabench.harness.measure import seeds
from vocabench.harness.published.ledger import BASELINE
from vocabench.harness.quantities import is_on_log_scale
from vocabench.harness.report.rows import Filter, flatten
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Row

WITHOUT_SPLIT = ("train_seconds", "layer_seconds", "peak_bytes")  # quantities that are not measured on a split


@dataclass(frozen=True)
class Ours:
    """One quantity of one row, or of several rows that differ by their seed alone.

    Attributes:
        value: The mean over seeds; None if the row has no measurements; `status` gives the reason.
        ratio: Figure of full softmax divided by `value`.
        parts: Values by language, if the row has them.
        pooled: Values of several languages, with their errors pooled.
        split: Split that the quantity was measured on; "" for one without.
        tested_on: Languages of the test set; empty if the row does not say.
        average: How `value` is averaged over languages, for a figure of a group.
        seeds: Number of seeds.
        interval: 95 % interval of `value` over seeds, if there are several.
    """

    cell: Cell
    quantity: str | None
    unit: str | None
    value: float | None
    ratio: float | None
    agreement: str
    status: str
    message: str
    parts: Mapping[str, float] = field(default_factory=dict)
    pooled: Mapping[frozenset[str], float] = field(default_factory=dict)
    split: str = ""
    tested_on: frozenset[str] = frozenset()
    average: str = ""
    seeds: int = 1
    interval: tuple[float, float] | None = None


def ours(rows: Sequence[Row], selected: Filter) -> list[Ours]:
    """Return the selected measurements of the rows of one run."""
    measured = [(row, measurement) for row in rows for measurement in row.measurements or [None]]
    records = flatten(rows)
    figures = [
        Ours(
            row.cell,
            record["quantity"],
            record["unit"],
            record["value"],
            record["ratio_to_full_softmax"],
            record["agreement"],
            record["status"],
            record["message"],
            **({} if measurement is None else _parts(measurement)),
            split=_split(row, measurement),
            tested_on=_tested_on(row),
        )
        for (row, measurement), record in zip(measured, records, strict=True)
    ]
    # Ratios come first, because full softmax itself may not be selected.
    chosen = [own for own, record in zip(_with_ratios(figures), records, strict=True) if selected.keeps(record)]
    models: dict[str, list[Ours]] = {}
    for own in chosen:
        fields = {key: value for key, value in own.cell.to_json().items() if key not in ("suite", "seed")}
        models.setdefault(json.dumps([own.quantity, fields], sort_keys=True), []).append(own)
    return [mean for trainings in models.values() for mean in _over_seeds(trainings)]


def _over_seeds(trainings: Sequence[Ours]) -> Sequence[Ours]:
    """Return one figure for trainings that differ by their seed alone, with means; others as they are."""
    quantity = trainings[0].quantity
    measured = {own.cell.seed: own for own in trainings if own.value is not None}
    if quantity is None or len(measured) < 2:
        return trainings
    members = list(measured.values())
    values = [own.value for own in members if own.value is not None]
    is_log = is_on_log_scale(quantity) and min(values) > 0
    mean = (seeds.geometric_mean if is_log else seeds.mean)(values)
    ratios = [own.ratio for own in members if own.ratio]
    names = set.intersection(*(set(own.parts) for own in members))
    groups = set.intersection(*(set(own.pooled) for own in members))
    return [
        dataclasses.replace(
            members[0],
            value=mean.value,
            ratio=seeds.geometric_mean(ratios).value if ratios else None,
            parts={name: seeds.mean([own.parts[name] for own in members]).value for name in sorted(names)},
            pooled={group: seeds.mean([own.pooled[group] for own in members]).value for group in groups},
            seeds=mean.seeds,
            interval=(mean.low, mean.high),
        )
    ]


def _parts(measurement: Measurement) -> dict[str, Any]:
    """Return the finite values by language and by group of languages."""
    languages, groups = (measurement.detail.get(kind) for kind in ("languages", "groups"))
    by_language = languages if isinstance(languages, dict) else {}
    by_group = groups.values() if isinstance(groups, dict) else ()
    return {
        "parts": {name: part["value"] for name, part in by_language.items() if part["value"] is not None},
        "pooled": {
            frozenset(part["languages"]): part["value"]
            for part in by_group
            if part["value"] is not None and part.get("languages")
        },
    }


def _split(row: Row, measurement: Measurement | None) -> str:
    if measurement is None or measurement.quantity in WITHOUT_SPLIT:
        return ""
    return str(measurement.detail.get("split") or row.cell.settings.get("split", ""))


def _tested_on(row: Row) -> frozenset[str]:
    details = (measurement.detail.get("languages") for measurement in row.measurements)
    return frozenset(language for languages in details for language in languages or ())


def _with_ratios(figures: Sequence[Ours]) -> Iterator[Ours]:
    """Add ratios to figures that were not timed in pairs, from full softmax in the same run."""
    baselines = {(_without_method(own.cell), own.quantity): own for own in figures if own.cell.method == BASELINE}
    for own in figures:
        baseline = baselines.get((_without_method(own.cell), own.quantity))
        if own.ratio is None and baseline and baseline.value and own.value:
            own = dataclasses.replace(own, ratio=baseline.value / own.value)
        yield own


def _without_method(cell: Cell) -> str:
    fields = {key: value for key, value in cell.to_json().items() if key not in ("suite", "method", "options")}
    return json.dumps(fields, sort_keys=True)
