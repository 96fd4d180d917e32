"""How good a trained model is against how fast it was trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vocabench.harness.quantities import HIGHER, QUANTITIES
from vocabench.harness.report import svg
from vocabench.harness.report.figures._figure import Figure, Looks, name_of, unless_test
from vocabench.harness.report.rows import Record, groups
from vocabench.harness.report.svg import Axes
from vocabench.harness.tasks.shared.paired import BASELINE

# The one figure by which a task's models are told apart.
QUALITY = {
    "language_modelling": "perplexity",
    "summarization": "rouge1_f1",
    "speech": "cer",
    "word_vectors": "perplexity",
}


@dataclass(frozen=True)
class _Point:
    """A model; `name` is what it looks by, `apart` what sets it apart from others of that name."""

    name: str
    apart: str
    framework: str
    speed: float
    quality: float

    @property
    def full_name(self) -> str:
        return f"{self.name} ({self.apart})" if self.apart else self.name


def trade_offs(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Quality against training speed, with the points that no other beats in both (the Pareto front)."""
    made = []
    for task, quantity in QUALITY.items():
        mine = [r for r in records if r["task"] == task and r["value"] is not None]
        found = groups(mine, "dataset", "vocab", "split")
        for number, ((dataset, vocab, split), group) in enumerate(found.items()):
            points = _points(group, quantity)
            if len(points) < 2:
                continue
            better_high = QUANTITIES[quantity][1] == HIGHER
            front = pareto(points, better_high)

            def draw(
                axes: Axes,
                points: Sequence[_Point] = points,
                front: Sequence[_Point] = front,
                label: str = quantity,
                high: bool = better_high,
            ) -> None:
                frameworks = list(dict.fromkeys(p.framework for p in points))
                for name in dict.fromkeys(p.name for p in points):
                    mine = [p for p in points if p.name == name]
                    axes.plot([], [], linestyle="none", marker="o", color=looks[name]["color"], label=svg.short(name))
                    for p in mine:
                        marker = svg.MARKERS[frameworks.index(p.framework) % len(svg.MARKERS)]
                        axes.plot(
                            p.speed,
                            p.quality,
                            marker=marker,
                            color=looks[name]["color"],
                            markersize=6,
                            linestyle="none",
                        )
                for framework in frameworks:
                    marker = svg.MARKERS[frameworks.index(framework) % len(svg.MARKERS)]
                    axes.plot([], [], linestyle="none", marker=marker, color="#888", label=framework)
                along = sorted(front, key=lambda p: p.speed)
                axes.step([p.speed for p in along], [p.quality for p in along], where="pre", color="#888", linewidth=1)
                axes.set_xlabel("training speed (full softmax of the same framework = 1)")
                axes.set_ylabel(f"{label} ({'higher' if high else 'lower'} is better)")
                svg.logarithmic(axes.xaxis)
                if label == "perplexity":
                    svg.logarithmic(axes.yaxis)
                axes.grid()
                svg.legend(axes)

            title = f"Quality against speed: {task.replace('_', ' ')} on {dataset}{unless_test(split)}, {vocab:,} words"
            best = ", ".join(f"{p.full_name} in {p.framework}" for p in sorted(front, key=lambda p: p.speed))
            made.append(
                Figure(
                    "quality",
                    title,
                    "The grey steps join what no other model beats in both. Times are of whole training runs, one "
                    "after the other: they show more noise than the paired timings of layers.",
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
    return made


def _points(group: Sequence[Record], quantity: str) -> list[_Point]:
    of: dict[tuple[str, str, str], dict[str, float]] = {}
    for record in group:
        key = (name_of(record), record["apart"], record["framework"])
        of.setdefault(key, {})[record["quantity"]] = record["value"]
    baseline: dict[tuple[str, str], float] = {}
    for (name, apart, framework), values in of.items():
        if name == BASELINE and "train_seconds" in values:
            baseline[apart, framework] = values["train_seconds"]
            baseline.setdefault(("", framework), values["train_seconds"])  # of what no other is set apart like
    return [
        _Point(name, apart, framework, seconds / values["train_seconds"], values[quantity])
        for (name, apart, framework), values in of.items()
        if (seconds := baseline.get((apart, framework), baseline.get(("", framework))))
        and values.get("train_seconds")
        and quantity in values
    ]


def pareto(points: Sequence[_Point], better_high: bool) -> list[_Point]:
    """The points that no other is as good as in both speed and quality, and better in one."""
    sign = 1 if better_high else -1

    def beaten(p: _Point) -> bool:
        return any(
            o.speed >= p.speed and sign * o.quality >= sign * p.quality and (o.speed, o.quality) != (p.speed, p.quality)
            for o in points
        )

    return [p for p in points if not beaten(p)]
