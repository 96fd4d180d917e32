"""The report's figures: each a drawing with the numbers it shows, made from stored rows; none without a row to draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.quantities import HIGHER, QUANTITIES
from harness.report import _svg
from harness.report._svg import Axes
from harness.report.rows import Record
from harness.report.table import seconds, share, size
from harness.store import Row
from harness.tasks._paired import BASELINE

Looks = Mapping[str, Mapping[str, str]]  # of a method, the same in every figure: colour and marker

# The one figure by which a task's models are told apart.
QUALITY = {
    "language_modelling": "perplexity",
    "summarization": "rouge1_f1",
    "speech": "cer",
    "word_vectors": "perplexity",
}


@dataclass(frozen=True)
class Figure:
    """
    Attributes:
        section: Where in the report it stands.
        title: What it shows.
        caption: How to read it.
        svg: The drawing.
        columns, lines: The same numbers as a table, for readers who cannot see the drawing.
    """

    section: str
    title: str
    caption: str
    svg: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


def all_of(rows: Sequence[Row], records: Sequence[Record]) -> list[Figure]:
    """Every figure that these rows have numbers for."""
    looks = _svg.style([name_of(record) for record in records if record["quantity"] != "agreement_error"])
    return [
        *speed(records, looks),
        *roofline(records, looks),
        *memory(records, looks),
        *quality(records, looks),
        *curves(rows, looks),
        *agreement(records),
    ]


def name_of(record: Record) -> str:
    return f"{record['method']} {record['options']}".strip()


def _groups(records: Iterable[Record], *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in keys), []).append(record)
    return groups


def _by_vocabulary(
    records: Sequence[Record], quantity: str
) -> Iterator[tuple[tuple[Any, ...], dict[str, list[Record]]]]:
    """For each setting of the timing task that has several sizes or methods: method to its records by rising size."""
    found = [
        r
        for r in records
        if r["task"] == "timing" and r["quantity"] == quantity and r["value"] is not None and r["vocab"]
    ]
    for key, group in _groups(found, "framework", "dim", "tokens", "precision", "device").items():
        lines: dict[str, list[Record]] = {}
        for record in sorted(group, key=lambda record: record["vocab"]):
            lines.setdefault(name_of(record), []).append(record)
        yield key, lines


def _setting(key: tuple[Any, ...]) -> str:
    framework, dim, tokens, precision, device = key
    return f"{framework}, N={tokens:,}, D={dim}, {precision}, {device}"


def _size_axis(axes: Axes, records: Iterable[Record]) -> None:
    sizes = sorted({record["vocab"] for record in records})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [_svg.thousands(vocab) for vocab in sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("vocabulary (words)")
    axes.grid(axis="y")


def speed(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Speed-up of forward and backward over full softmax by size of the vocabulary; what disagrees has none."""
    agreed = [r for r in records if r["agreement"] != "disagree" and r["ratio_to_full_softmax"] is not None]
    made = []
    for number, (key, lines) in enumerate(_by_vocabulary(agreed, "layer_seconds")):
        lines = {name: found for name, found in lines.items() if found[0]["method"] != BASELINE}
        if not lines:
            continue

        def draw(axes: Axes, lines: dict[str, list[Record]] = lines) -> None:
            for name in lines:
                found = lines[name]
                ratio = [r["ratio_to_full_softmax"] for r in found]
                below = [max(0.0, r["ratio_to_full_softmax"] - r["ratio_low"]) for r in found]
                above = [max(0.0, r["ratio_high"] - r["ratio_to_full_softmax"]) for r in found]
                sizes = [r["vocab"] for r in found]
                axes.errorbar(
                    sizes,
                    ratio,
                    yerr=[below, above],
                    capsize=2,
                    linewidth=1.4,
                    markersize=5,
                    label=_svg.short(name),
                    **looks[name],
                )
            axes.axhline(1.0, color="#888", linewidth=1)
            axes.set_ylabel("times faster than full softmax")
            _svg.logarithmic(axes.yaxis)
            _size_axis(axes, (r for found in lines.values() for r in found))
            _svg.legend(axes)

        made.append(
            Figure(
                "speed",
                f"Speed-up over full softmax: {_setting(key)}",
                "Forward and backward of the layer, timed turn by turn with full softmax of the same framework; bars "
                "are 95 % intervals, the line at 1 is full softmax.",
                _svg.drawn(draw, name=f"speed{number}", title=f"Speed-up, {_setting(key)}", description=_spoken(lines)),
                ("method", "words", "speed-up", "95 % interval", "time"),
                [
                    (
                        name,
                        f"{r['vocab']:,}",
                        f"{r['ratio_to_full_softmax']:.2f}",
                        f"{r['ratio_low']:.2f} to {r['ratio_high']:.2f}",
                        seconds(r["value"]),
                    )
                    for name, found in lines.items()
                    for r in found
                ],
            )
        )
    return made


def _spoken(lines: dict[str, list[Record]]) -> str:
    last = {name: found[-1] for name, found in lines.items()}
    return "; ".join(
        f"{name}: {r['ratio_to_full_softmax']:.1f} times at {r['vocab']:,} words" for name, r in last.items()
    )


@dataclass(frozen=True)
class _Mark:
    """A layer's time under the roofline: the least FLOPs and bytes of its method, the seconds it took, the ceilings
    (FLOP/s, bytes/s) of the process that took them, and which share of the roofline that is."""

    name: str
    words: int
    flops: float
    bytes: float
    seconds: float
    ceilings: tuple[float, float]
    share: float

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes

    @property
    def flops_per_second(self) -> float:
        return self.flops / self.seconds

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds


def roofline(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Achieved FLOP/s against FLOPs a byte, below the measured ceilings; what disagrees has none."""
    made = []
    agreed = [r for r in records if r["agreement"] != "disagree"]
    values = {(_identity(r), r["quantity"]): r["value"] for r in agreed}
    for number, (key, lines) in enumerate(_by_vocabulary(agreed, "roofline_share")):
        marks = {name: [_mark(r, values) for r in found] for name, found in lines.items()}
        every = [mark for found in marks.values() for mark in found]
        flops_per_second, bytes_per_second = (max(mark.ceilings[i] for mark in every) for i in (0, 1))

        def draw(
            axes: Axes,
            marks: dict[str, list[_Mark]] = marks,
            every: list[_Mark] = every,
            flops: float = flops_per_second,
            moved: float = bytes_per_second,
        ) -> None:
            ridge = flops / moved
            ends = min(ridge, *(mark.intensity for mark in every)) / 2, max(ridge, *(m.intensity for m in every)) * 2
            roof = [min(moved * intensity, flops) / 1e9 for intensity in (ends[0], ridge, ends[1])]
            axes.plot((ends[0], ridge, ends[1]), roof, color="#888", linewidth=1.4)
            for name, found in marks.items():
                points = [(mark.intensity, mark.flops_per_second / 1e9) for mark in found]
                axes.plot(
                    *zip(*points, strict=True), linewidth=0.7, markersize=5, label=_svg.short(name), **looks[name]
                )
            axes.set(xlabel="least FLOPs a byte", ylabel="GFLOP/s")
            _svg.logarithmic(axes.xaxis)
            _svg.logarithmic(axes.yaxis)
            axes.grid()
            _svg.legend(axes)

        last = {name: found[-1] for name, found in marks.items()}
        made.append(
            Figure(
                "roofline",
                f"Roofline: {_setting(key)}",
                f"The grey line is the most that this machine allows: {flops_per_second / 1e9:.3g} GFLOP/s in a matrix "
                f"product, {bytes_per_second / 1e9:.3g} GB/s from memory, the best that any cell saw. A mark is the "
                "least work of a method at one size of the vocabulary over the time of forward and backward.",
                _svg.drawn(
                    draw,
                    name=f"roofline{number}",
                    title=f"Roofline, {_setting(key)}",
                    description="; ".join(
                        f"{name}: {share(mark.share)} of the roofline at {mark.words:,} words"
                        for name, mark in last.items()
                    ),
                ),
                ("method", "words", "FLOPs a byte", "GFLOP/s", "of the most", "GB/s", "of the most ", "of roofline"),
                [
                    (
                        mark.name,
                        f"{mark.words:,}",
                        f"{mark.intensity:.3g}",
                        f"{mark.flops_per_second / 1e9:.3g}",
                        share(mark.flops_per_second / mark.ceilings[0]),
                        f"{mark.bytes_per_second / 1e9:.3g}",
                        share(mark.bytes_per_second / mark.ceilings[1]),
                        share(mark.share),
                    )
                    for mark in every
                ],
            )
        )
    return made


def _identity(record: Record) -> tuple[Any, ...]:
    keys = ("suite", "framework", "method", "options", "vocab", "dim", "tokens", "device", "precision", "seed")
    return tuple(record[key] for key in keys)


def _mark(record: Record, values: Mapping[tuple[tuple[Any, ...], str], float]) -> _Mark:
    def of(quantity: str) -> float:
        return values[_identity(record), quantity]

    return _Mark(
        name_of(record),
        record["vocab"],
        of("least_flops"),
        of("least_bytes"),
        of("layer_seconds"),
        (of("ceiling_flops_per_second"), of("ceiling_bytes_per_second")),
        record["value"],
    )


def memory(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Peak extra memory of forward and backward against the size of the vocabulary."""
    made = []
    for number, (key, lines) in enumerate(_by_vocabulary(records, "peak_bytes")):

        def draw(axes: Axes, lines: dict[str, list[Record]] = lines) -> None:
            for name in lines:
                points = [(r["vocab"], r["value"] / 2**20) for r in lines[name]]
                axes.plot(
                    *zip(*points, strict=True), linewidth=1.4, markersize=5, label=_svg.short(name), **looks[name]
                )
            axes.set_ylabel("peak extra memory (MiB)")
            _svg.logarithmic(axes.yaxis)
            _size_axis(axes, (r for found in lines.values() for r in found))
            _svg.legend(axes)

        largest = {name: found[-1] for name, found in lines.items()}
        made.append(
            Figure(
                "memory",
                f"Peak memory: {_setting(key)}",
                "Most memory beyond what was held before, during forward and backward of the layer.",
                _svg.drawn(
                    draw,
                    name=f"memory{number}",
                    title=f"Peak memory, {_setting(key)}",
                    description="; ".join(
                        f"{n}: {size(r['value'])} at {r['vocab']:,} words" for n, r in largest.items()
                    ),
                ),
                ("method", "words", "peak memory"),
                [(name, f"{r['vocab']:,}", size(r["value"])) for name, found in lines.items() for r in found],
            )
        )
    return made


@dataclass(frozen=True)
class _Point:
    name: str
    framework: str
    speed: float
    quality: float


def quality(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Quality against training speed, with the points that no other beats in both (the Pareto front)."""
    made = []
    for task, quantity in QUALITY.items():
        mine = [r for r in records if r["task"] == task and r["value"] is not None]
        groups = _groups(mine, "dataset", "vocab", "split")
        for number, ((dataset, vocab, split), group) in enumerate(groups.items()):
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
                    axes.plot([], [], linestyle="none", marker="o", color=looks[name]["color"], label=_svg.short(name))
                    for p in mine:
                        marker = _svg.MARKERS[frameworks.index(p.framework) % len(_svg.MARKERS)]
                        axes.plot(
                            p.speed,
                            p.quality,
                            marker=marker,
                            color=looks[name]["color"],
                            markersize=6,
                            linestyle="none",
                        )
                for framework in frameworks:
                    marker = _svg.MARKERS[frameworks.index(framework) % len(_svg.MARKERS)]
                    axes.plot([], [], linestyle="none", marker=marker, color="#888", label=framework)
                along = sorted(front, key=lambda p: p.speed)
                axes.step([p.speed for p in along], [p.quality for p in along], where="pre", color="#888", linewidth=1)
                axes.set_xlabel("training speed (full softmax of the same framework = 1)")
                axes.set_ylabel(f"{label} ({'higher' if high else 'lower'} is better)")
                _svg.logarithmic(axes.xaxis)
                if label == "perplexity":
                    _svg.logarithmic(axes.yaxis)
                axes.grid()
                _svg.legend(axes)

            title = (
                f"Quality against speed: {task.replace('_', ' ')} on {dataset}{_unless_test(split)}, {vocab:,} words"
            )
            best = ", ".join(f"{p.name} in {p.framework}" for p in sorted(front, key=lambda p: p.speed))
            made.append(
                Figure(
                    "quality",
                    title,
                    "The grey steps join what no other model beats in both. Times are of whole training runs, one "
                    "after the other: they show more noise than the paired timings of layers.",
                    _svg.drawn(
                        draw,
                        name=f"quality-{task}{number}",
                        title=title,
                        description=f"Not beaten in both: {best}",
                    ),
                    ("method", "framework", quantity, "training speed", "on the front"),
                    [
                        (p.name, p.framework, f"{p.quality:.4g}", f"{p.speed:.2f}", "yes" if p in front else "")
                        for p in points
                    ],
                )
            )
    return made


def _unless_test(split: str | None) -> str:
    """Which split it is of, where it is not that for testing."""
    return f", {split} split" if split not in (None, "", "test") else ""


def _points(group: Sequence[Record], quantity: str) -> list[_Point]:
    of: dict[tuple[str, str, Any], dict[str, float]] = {}
    for record in group:
        of.setdefault((name_of(record), record["framework"], record["seed"]), {})[record["quantity"]] = record["value"]
    baseline = {
        framework: values["train_seconds"]
        for (name, framework, _), values in of.items()
        if name == BASELINE and "train_seconds" in values
    }
    return [
        _Point(name, framework, baseline[framework] / values["train_seconds"], values[quantity])
        for (name, framework, _), values in of.items()
        if framework in baseline and values.get("train_seconds") and quantity in values
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


def curves(rows: Sequence[Row], looks: Looks) -> list[Figure]:
    """Held-out perplexity while training; where clusters re-organize, just before and just after (SOHSM's figure 1)."""
    groups: dict[tuple[str, str, str, str], dict[str, tuple[list[dict[str, float]], list[dict[str, float]]]]] = {}
    for row in rows:
        cell = row["cell"]
        for measurement in row["measurements"]:
            detail = measurement.get("detail", {})
            curve = [point for point in detail.get("curve", ()) if point.get("perplexity") is not None]
            if measurement["quantity"] == "perplexity" and (len(curve) > 1 or detail.get("reorganizations")):
                name = _name_of_cell(cell)
                group = groups.setdefault(
                    (cell["task"], cell["dataset"], detail.get("split", ""), cell["framework"]), {}
                )
                group[name] = (curve, detail.get("reorganizations", []))
    made = []
    for number, ((task, dataset, split, framework), lines) in enumerate(groups.items()):

        def draw(axes: Axes, lines: dict[str, Any] = lines) -> None:
            for name in lines:
                steps = _steps(*lines[name])
                axes.plot(*zip(*steps, strict=True), linewidth=1.3, markersize=4, label=_svg.short(name), **looks[name])
            counted = "steps" if any("step" in point for curve, _ in lines.values() for point in curve) else "epochs"
            axes.set(xlabel=f"training {counted}", ylabel="held-out perplexity")
            _svg.logarithmic(axes.yaxis)
            axes.grid(axis="y")
            _svg.legend(axes)

        title = f"Training: {task.replace('_', ' ')} on {dataset}{_unless_test(split)}, {framework}"
        reorganized = any(changes for _, changes in lines.values())
        made.append(
            Figure(
                "training",
                title,
                "Perplexity of held-out text while training."
                + (" Where clusters re-organize, it is of a sample just before and just after." if reorganized else ""),
                _svg.drawn(
                    draw,
                    name=f"curve{number}",
                    title=title,
                    description="; ".join(f"{n}: ends at {_steps(*found)[-1][1]:.1f}" for n, found in lines.items()),
                ),
                ("method", "step", "perplexity"),
                [(n, f"{step:,.0f}", f"{value:.2f}") for n, found in lines.items() for step, value in _steps(*found)],
            )
        )
    return made


def _name_of_cell(cell: dict[str, Any]) -> str:
    from harness.cells import variant

    return f"{cell['method']} {variant(cell['options'])}".strip()


def _steps(curve: list[dict[str, float]], changes: list[dict[str, float]]) -> list[tuple[float, float]]:
    points = [(point["step" if "step" in point else "epoch"], point["perplexity"]) for point in curve]
    for change in changes:
        points += [
            (change["step"], change[key])
            for key in ("perplexity_before", "perplexity_after")
            if change.get(key) is not None
        ]
    return sorted(points, key=lambda point: point[0])  # stable: before stays before after


def agreement(records: Sequence[Record]) -> list[Figure]:
    """Largest error of each method and framework against the float64 oracle, in units of its tolerance."""
    found = [r for r in records if r["quantity"] == "agreement_error" and r["value"]]
    made = []
    for number, ((precision,), group) in enumerate(_groups(found, "precision").items()):
        names = list(dict.fromkeys(name_of(r) for r in group))
        frameworks = list(dict.fromkeys(r["framework"] for r in group))

        def draw(
            axes: Axes,
            group: list[Record] = group,
            names: list[str] = names,
            frameworks: list[str] = frameworks,
        ) -> None:
            for framework, look in _svg.style(frameworks).items():
                mine = [r for r in group if r["framework"] == framework]
                places = [names.index(name_of(r)) for r in mine]
                axes.plot([r["value"] for r in mine], places, linestyle="none", markersize=5, label=framework, **look)
            axes.axvline(1.0, color="#888", linewidth=1)
            axes.set_yticks(range(len(names)), [_svg.short(name) for name in names])
            axes.invert_yaxis()
            axes.set(xscale="log", xlabel="largest error (1 = the tolerance)")
            axes.grid(axis="x")
            _svg.legend(axes)

        title = f"Agreement with the float64 definition: {precision}"
        outside = [f"{name_of(r)} in {r['framework']}" for r in group if r["value"] > 1]
        made.append(
            Figure(
                "agreement",
                title,
                "Left of the line: within the tolerance of values, gradients, top-k and training steps.",
                _svg.drawn(
                    draw,
                    name=f"agreement{number}",
                    title=title,
                    description=f"Outside: {', '.join(outside)}" if outside else "All are within the tolerance.",
                    height=max(1.8, 0.6 + 0.21 * len(names)),
                ),
                ("method", "framework", "largest error"),
                [(name_of(r), r["framework"], f"{r['value']:.2g}") for r in group],
            )
        )
    return made
