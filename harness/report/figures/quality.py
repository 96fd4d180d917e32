"""Quality of trained models against their training speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vocabench.harness.quantities import HIGHER, QUANTITIES
from vocabench.harness.report import svg
from vocabench.harness.report.figures._figure import Figure, Looks, name_of, unless_test
from vocabench.harness.report.rows import Record, groups, quantity_of, value_of
from vocabench.harness.report.svg import Axes
from vocabench.harness.tasks.shared.paired import BASELINE

# The quantity that compares the models of a task.
QUALITY = {
    "language_modelling": "perplexity",
    "summarization": "rouge1_f1",
    "speech": "cer",
    "word_vectors": "perplexity",
    "documents": "triplet_accuracy",
}


@dataclass(frozen=True)
class Point:
    """A trained model.

    Attributes:
        name: Method with its options, which determines the colour.
        apart: What distinguishes it from other models with the same name.
        speed: Training time of full softmax in the same framework divided by that of the model.
        quality: Value of the quantity that compares the models.
    """

    name: str
    apart: str
    framework: str
    speed: float
    quality: float

    @property
    def full_name(self) -> str:
        return f"{self.name} ({self.apart})" if self.apart else self.name


def trade_offs(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Draw quality against training speed, with the Pareto front."""
    drawn = []
    for task, quantity in QUALITY.items():
        of_task = [r for r in records if r["task"] == task and r["value"] is not None]
        for number, ((dataset, vocab, split), group) in enumerate(groups(of_task, "dataset", "vocab", "split").items()):
            points = _points(group, quantity)
            if len(points) < 2:
                continue
            front = pareto(points, QUANTITIES[quantity].better == HIGHER)

            def draw(
                axes: Axes,
                points: Sequence[Point] = points,
                front: Sequence[Point] = front,
                quantity: str = quantity,
            ) -> None:
                _draw(axes, points, front, quantity, looks)

            title = f"Quality against speed: {task.replace('_', ' ')} on {dataset}{unless_test(split)}, {vocab:,} words"
            best = ", ".join(f"{p.full_name} in {p.framework}" for p in sorted(front, key=lambda p: p.speed))
            drawn.append(
                Figure(
                    "quality",
                    title,
                    "The grey steps connect the models that no other model beats in both. Times are those of whole "
                    "training runs, one after the other, and noisier than the paired timings of layers.",
                    svg.drawn(
                        draw,
                        name=f"quality-{task}{number}",
                        title=title,
                        description=f"Not beaten in both: {best}",
                    ),
                    ("method", "framework", quantity, "training speed", "on the front"),
                    [
                        (p.full_name, p.framework, f"{p.quality:.4g}", f"{p.speed:.2f}", "yes" if p in front else "")
                        for p in points
                    ],
                )
            )
    return drawn


def _draw(axes: Axes, points: Sequence[Point], front: Sequence[Point], quantity: str, looks: Looks) -> None:
    frameworks = list(dict.fromkeys(p.framework for p in points))
    markers = {name: svg.MARKERS[i % len(svg.MARKERS)] for i, name in enumerate(frameworks)}
    for name in dict.fromkeys(p.name for p in points):
        colour = looks[name]["color"]
        axes.plot([], [], linestyle="none", marker="o", color=colour, label=svg.short(name))
        for p in points:
            if p.name == name:
                marker = markers[p.framework]
                axes.plot(p.speed, p.quality, marker=marker, color=colour, markersize=6, linestyle="none")
    for framework, marker in markers.items():
        axes.plot([], [], linestyle="none", marker=marker, color="#888", label=framework)
    steps = sorted(front, key=lambda p: p.speed)
    axes.step([p.speed for p in steps], [p.quality for p in steps], where="pre", color="#888", linewidth=1)
    axes.set_xlabel("training speed (full softmax of the same framework = 1)")
    axes.set_ylabel(f"{quantity} ({QUANTITIES[quantity].better} is better)")
    svg.logarithmic(axes.xaxis)
    if quantity == "perplexity":
        svg.logarithmic(axes.yaxis)
    axes.grid()
    svg.legend(axes)


def _points(group: Sequence[Record], quantity: str) -> list[Point]:
    models: dict[tuple[str, str, str], dict[str, float]] = {}
    for record in group:
        key = (name_of(record), record["apart"], record["framework"])
        models.setdefault(key, {})[quantity_of(record)] = value_of(record)
    baseline: dict[tuple[str, str], float] = {}
    for (name, apart, framework), values in models.items():
        if name == BASELINE and "train_seconds" in values:
            baseline[apart, framework] = values["train_seconds"]
            baseline.setdefault(("", framework), values["train_seconds"])  # for models without a baseline of their own
    return [
        Point(name, apart, framework, seconds / values["train_seconds"], values[quantity])
        for (name, apart, framework), values in models.items()
        if (seconds := baseline.get((apart, framework), baseline.get(("", framework))))
        and values.get("train_seconds")
        and quantity in values
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
