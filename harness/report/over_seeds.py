"""Rows that differ by their seed alone: means over seeds, and differences to full softmax paired by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vocabench.harness.measure import seeds
from vocabench.harness.measure.seeds import Estimate
from vocabench.harness.quantities import is_on_log_scale
from vocabench.harness.report.rows import Record, SeedFields, ratio_of
from vocabench.harness.tasks.shared.paired import BASELINE

# Tasks whose rows are trainings. A seed is then another training, and not another sample of the same figure.
_TASKS = ("language_modelling", "summarization", "speech", "word_vectors", "documents")

_Model = tuple[str, str, str, str]  # trial, method, options and quantity


def with_estimates(records: Iterable[Record]) -> list[Record]:
    """Return the records of one or more runs, each with the estimates over all seeds of its model."""
    records = list(records)
    by_model: dict[_Model, dict[int, float]] = {}
    for record in records:
        if _is_finite(record):
            assert record["value"] is not None
            by_model.setdefault(_model(record), {})[record["seed"]] = record["value"]
    estimates: dict[_Model, SeedFields] = {}
    for record in records:
        if (model := _model(record)) in by_model and model not in estimates:
            estimates[model] = _estimate(record, by_model)
    return [{**record, **estimates.get(_model(record), {})} for record in records]


def combined(records: Sequence[Record]) -> list[Record]:
    """Return one record for each model and quantity, whose value and interval are those over seeds.

    Records of other tasks, and models with a single seed, stay as they are.
    """
    models: dict[object, list[Record]] = {}
    for number, record in enumerate(records):
        models.setdefault(number if record["seeds"] < 2 else _model(record), []).append(record)
    return [trainings[0] if trainings[0]["seeds"] < 2 else _combined(trainings) for trainings in models.values()]


def _combined(trainings: Sequence[Record]) -> Record:
    first = trainings[0]
    means: SeedFields = {"value": first["mean"], "low": first["mean_low"], "high": first["mean_high"]}
    return {**first, **means, "apart": first["apart_but_seed"], **_ratio_over_seeds(trainings)}


def _model(record: Record) -> _Model:
    return record["trial"], record["method"], record["options"], str(record["quantity"])


def _is_finite(record: Record) -> bool:
    """Return whether the record is of a training and has a value that can be averaged."""
    value = record["value"]
    if record["task"] not in _TASKS or record["quantity"] is None or value is None:
        return False
    return value > 0 or not is_on_log_scale(record["quantity"])


def _estimate(record: Record, by_model: Mapping[_Model, Mapping[int, float]]) -> SeedFields:
    """Return the estimates of the model and quantity of a record."""
    values = by_model[_model(record)]
    is_log = is_on_log_scale(str(record["quantity"]))
    mean = (seeds.geometric_mean if is_log else seeds.mean)(list(values.values()))
    fields: SeedFields = {"seeds": mean.seeds}
    if mean.seeds > 1:
        fields |= {"mean": mean.value, "mean_low": mean.low, "mean_high": mean.high}
    baseline = by_model.get((record["trial"], BASELINE, "", str(record["quantity"])))
    if baseline is not None and record["method"] != BASELINE and record["unit"] != "s":
        difference = (seeds.relative_difference if is_log else seeds.difference)(values, baseline)
        if difference is not None:
            fields |= _difference(difference, str(record["better"]))
    return fields


def _difference(found: Estimate, better: str) -> SeedFields:
    fields: SeedFields = {"seed_difference": found.value, "verdict": seeds.verdict(found, better)}
    if found.seeds > 1:
        fields |= {"seed_difference_low": found.low, "seed_difference_high": found.high}
    return fields


def _ratio_over_seeds(records: Sequence[Record]) -> SeedFields:
    """Return the mean speed-up over trainings with its interval, for a time that was measured next to full softmax."""
    ratios = [r["ratio_to_full_softmax"] for r in records if r["ratio_to_full_softmax"]]
    if len(ratios) < 2:
        return {}
    mean = seeds.geometric_mean(ratios)
    if records[0]["method"] == BASELINE:
        # One by definition; the intervals of the comparisons show the noise.
        found = [ratio for record in records if (ratio := ratio_of(record)) is not None]
        low, high = (seeds.geometric_mean([ratio[end] for ratio in found]).value for end in (1, 2))
        return {"ratio_low": low, "ratio_high": high}
    return {"ratio_to_full_softmax": mean.value, "ratio_low": mean.low, "ratio_high": mean.high}
