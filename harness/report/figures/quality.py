"""Quality of trained models against their training speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vocabench.harness.quantities import HIGHER, QUANTITIES
from vocabench.harness.report.figures._figure import Axis, Figure, Form, Mark, form_of, unless_test
from vocabench.harness.report.rows import Record, is_held_out, quantity_of, value_of
from vocabench.harness.tasks.shared.paired import BASELINE

# The quantities that compare the models of a task.
QUALITIES: dict[str, tuple[str, ...]] = {
    "language_modelling": ("perplexity",),
    "summarization": ("rouge1_f1", "rougeL_f1"),
    "speech": ("cer", "per"),
    "word_vectors": ("perplexity", "analogy_accuracy", "similarity_correlation"),
    "documents": ("triplet_accuracy",),
}
TITLES = {
    "perplexity": "perplexity",
    "rouge1_f1": "ROUGE-1",
    "rougeL_f1": "ROUGE-L",
    "cer": "CER",
    "per": "PER",
    "analogy_accuracy": "analogies",
    "similarity_correlation": "similarity",
    "triplet_accuracy": "triplets",
}
_DRAWN = (
    ("language_modelling", "perplexity"),
    ("summarization", "rouge1_f1"),
    ("speech", "cer"),
    ("speech", "per"),
    ("word_vectors", "perplexity"),
    ("documents", "triplet_accuracy"),
)
IN_PERCENT = ("rouge1_f1", "rougeL_f1", "cer", "per", "analogy_accuracy", "triplet_accuracy")


@dataclass(frozen=True)
class Point:
    """A trained model.

    Attributes:
        form: Method, options and framework, and what distinguishes the model from others of the same form.
        speed: Training time of full softmax in the same framework divided by that of the model.
        quality: Value of the quantity that compares the models.
    """

    form: Form
    speed: float
    quality: float


def trade_offs(records: Sequence[Record], conditions: Mapping[str, str]) -> list[Figure]:
    """Return quality against training speed in each framework, with the Pareto front.

    Args:
        conditions: Conditions of trainings by trial, as `conditions.conditions` returns them. Models of different
            conditions are in different figures.
    """
    figures = []
    for task, quantity in _DRAWN:
        scored = [r for r in records if r["task"] == task and r["value"] is not None and is_held_out(r)]
        groups: dict[tuple[str, ...], list[Record]] = {}
        for r in scored:
            where = r["dataset"], r["objective"], r["split"], f"{r['vocab']:,} {r['units'] or 'words'}", r["framework"]
            groups.setdefault((*where, conditions.get(r["trial"], "")), []).append(r)
        for (dataset, objective, split, words, framework, condition), group in groups.items():
            points = _points(group, quantity)
            if len(points) < 2:
                continue
            better = QUANTITIES[quantity].better
            front = sorted(pareto(points, better == HIGHER), key=lambda p: p.speed)
            what = " ".join(filter(None, (task.replace("_", " "), objective and f"by {objective}")))
            where = ", ".join(filter(None, (words, framework, condition)))
            figures.append(
                Figure(
                    "quality",
                    f"Quality against speed: {what} on {dataset}{unless_test(split)}, {where}",
                    "The dashed steps connect the models that no other model beats in both. Times are those of whole "
                    "training runs, one after the other, and noisier than the paired timings of layers.",
                    "points",
                    Axis("training speed (full softmax = 1)", "ratio", includes=1.0),
                    Axis(
                        f"{TITLES[quantity]} ({better} is better)",
                        "percent" if quantity in IN_PERCENT else "number",
                        is_logarithmic=quantity == "perplexity",
                    ),
                    [Mark(p.form, p.speed, p.quality) for p in points],
                    ("method", "framework", quantity, "training speed", "on the front"),
                    [
                        (
                            p.form.full_name,
                            p.form.framework,
                            f"{p.quality:.4g}",
                            f"{p.speed:.2f}",
                            "yes" if p in front else "",
                        )
                        for p in points
                    ],
                    "Not beaten in both: " + ", ".join(f"{p.form.full_name} in {p.form.framework}" for p in front),
                    path=steps(front),
                )
            )
    return figures


def steps(front: Sequence[Point]) -> list[tuple[float, float]]:
    """Return the corners of the steps through the points of a front, by increasing speed."""
    corners: list[tuple[float, float]] = []
    for point in front:
        if corners:
            corners.append((corners[-1][0], point.quality))
        corners.append((point.speed, point.quality))
    return corners


def _points(group: Sequence[Record], quantity: str) -> list[Point]:
    models: dict[Form, dict[str, float]] = {}
    for record in group:
        form = form_of(record)._replace(apart=record["apart"])
        models.setdefault(form, {})[quantity_of(record)] = value_of(record)
    baseline: dict[tuple[str, str], float] = {}
    for form, values in models.items():
        if form.name == BASELINE and "train_seconds" in values:
            baseline[form.apart, form.framework] = values["train_seconds"]
            # for models without a baseline of their own
            baseline.setdefault(("", form.framework), values["train_seconds"])
    points = [
        Point(form, seconds / values["train_seconds"], values[quantity])
        for form, values in models.items()
        if (seconds := baseline.get((form.apart, form.framework), baseline.get(("", form.framework))))
        and (values.get("train_seconds") or 0) > 0
        and quantity in values
    ]
    names = Counter(point.form.name for point in points)
    return [
        replace(point, form=point.form._replace(apart="")) if names[point.form.name] == 1 else point for point in points
    ]


def pareto(points: Sequence[Point], higher_is_better: bool) -> list[Point]:
    """Return the points for which no other is at least as good in speed and quality, and better in one of them."""
    sign = 1 if higher_is_better else -1

    def is_beaten(p: Point) -> bool:
        return any(
            q.speed >= p.speed and sign * q.quality >= sign * p.quality and (q.speed, q.quality) != (p.speed, p.quality)
            for q in points
        )

    return [p for p in points if not is_beaten(p)]
