"""Word vectors: accuracy against the speed of training, and how well their products follow PMI."""

from __future__ import annotations

from collections.abc import Sequence

from vocabench.harness.report.figures._figure import Axis, Figure, Form, Mark, form_of
from vocabench.harness.report.rows import Record, groups, value_of
from vocabench.harness.report.units import share


def accuracies(records: Sequence[Record]) -> list[Figure]:
    """Return analogy accuracy against words per second, for each text, objective and size of the vocabulary."""
    figures = []
    for (dataset, objective, vocab, dim), group in _groups(records, "vocab", "dim"):
        models = _models(group, "words_per_second", "analogy_accuracy")
        if len(models) < 2:
            continue
        speed, accuracy = "words_per_second", "analogy_accuracy"
        figures.append(
            Figure(
                "quality",
                f"Analogies against speed: {_named(objective)} on {dataset}, {vocab:,} words, width {dim}",
                "Words of the training text per second, all passes counted. Bars are 95 % intervals over seeds.",
                "points",
                Axis("words per second", "count"),
                Axis("analogies", "percent", is_logarithmic=False),
                [
                    Mark(form, value_of(m[speed]), value_of(m[accuracy]), m[accuracy]["low"], m[accuracy]["high"])
                    for form, m in models.items()
                ],
                ("method", "framework", "words per second", "analogies"),
                [
                    (form.name, form.framework, f"{value_of(m[speed]):,.0f}", share(value_of(m[accuracy])))
                    for form, m in models.items()
                ],
                "; ".join(f"{form.name}: {share(value_of(m[accuracy]))}" for form, m in models.items()),
            )
        )
    return figures


def factorisations(records: Sequence[Record]) -> list[Figure]:
    """Return the correlation of products of vectors with PMI by their width."""
    figures = []
    for (dataset, objective, vocab), group in _groups(records, "vocab"):
        found = [r for r in group if r["quantity"] == "pmi_correlation" and r["value"] is not None]
        widths = sorted({r["dim"] for r in found})
        if len(widths) < 2:
            continue
        points = sorted(found, key=lambda r: r["dim"])
        figures.append(
            Figure(
                "quality",
                f"Products of vectors and PMI: {_named(objective)} on {dataset}, {vocab:,} words",
                "Correlation of the products of word and context vectors with the PMI of the pairs in the text. Bars "
                "are 95 % intervals over seeds.",
                "lines",
                Axis("width of the vectors", "count", ticks=widths),
                Axis("correlation", is_logarithmic=False),
                [Mark(form_of(r), r["dim"], value_of(r), r["low"], r["high"]) for r in points],
                ("method", "framework", "width", "correlation"),
                [(form_of(r).name, r["framework"], f"{r['dim']:,}", f"{value_of(r):.3f}") for r in points],
                "; ".join(f"width {r['dim']}: {value_of(r):.3f}" for r in points),
            )
        )
    return figures


def _groups(records: Sequence[Record], *fields: str) -> list[tuple[tuple, list[Record]]]:
    """Return the records of word vectors by text and objective, and by further fields."""
    ours = [r for r in records if r["task"] == "word_vectors"]
    return list(groups(ours, "dataset", "objective", *fields).items())


def _models(records: Sequence[Record], *quantities: str) -> dict[Form, dict[str, Record]]:
    """Return the records of each model that has all of some quantities."""
    models: dict[Form, dict[str, Record]] = {}
    for record in records:
        if record["quantity"] in quantities and record["value"]:
            form = form_of(record)._replace(apart=record["apart"])
            models.setdefault(form, {})[record["quantity"]] = record
    return {form: found for form, found in models.items() if len(found) == len(quantities)}


def _named(objective: str) -> str:
    return objective.replace("_", "-") if objective else "word vectors"
