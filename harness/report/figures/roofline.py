"""Rate of a layer compared with the ceilings of its machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.quantities import ROOFLINE
from vocabench.harness.report import svg
from vocabench.harness.report.figures._by_vocabulary import by_vocabulary, setting
from vocabench.harness.report.figures._figure import Figure, Looks, name_of
from vocabench.harness.report.rows import Record, value_of
from vocabench.harness.report.svg import Axes
from vocabench.harness.report.units import share

_NEEDED = ("layer_seconds", *ROOFLINE)  # must be positive for a mark


@dataclass(frozen=True)
class _Mark:
    """Position of a layer under the roofline.

    Attributes:
        words: Size of the vocabulary.
        flops, bytes: Least FLOPs and bytes of the method.
        seconds: Time of forward and backward pass.
        ceilings: FLOP/s and bytes/s that the same process reached.
        share: Least time by the ceilings divided by `seconds`.
    """

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


def achieved(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Draw achieved FLOP/s against FLOPs per byte, below the measured ceilings.

    Layers that disagree with their definition are left out.
    """
    drawn = []
    agreed = [r for r in records if r["agreement"] != DISAGREE]
    values = {(_identity(r), r["quantity"]): r["value"] for r in agreed}
    complete = [r for r in agreed if all((values.get((_identity(r), quantity)) or 0) > 0 for quantity in _NEEDED)]
    for number, (key, lines) in enumerate(by_vocabulary(complete, "roofline_share")):
        marks = {name: [_mark(r, values) for r in line] for name, line in lines.items()}
        all_marks = [mark for line in marks.values() for mark in line]
        flops_per_second, bytes_per_second = (max(mark.ceilings[i] for mark in all_marks) for i in (0, 1))

        def draw(
            axes: Axes,
            marks: dict[str, list[_Mark]] = marks,
            ceilings: tuple[float, float] = (flops_per_second, bytes_per_second),
        ) -> None:
            _draw(axes, marks, ceilings, looks)

        drawn.append(
            Figure(
                "roofline",
                f"Roofline: {setting(key)}",
                f"The grey line is the limit of this machine: {flops_per_second / 1e9:.3g} GFLOP/s in a matrix "
                f"product and {bytes_per_second / 1e9:.3g} GB/s from memory, the best rates of any cell. A mark is the "
                "least work of a method at one size of the vocabulary, divided by the time of forward and backward "
                "pass.",
                svg.drawn(
                    draw,
                    name=f"roofline{number}",
                    title=f"Roofline, {setting(key)}",
                    description="; ".join(
                        f"{name}: {share(line[-1].share)} of the roofline at {line[-1].words:,} words"
                        for name, line in marks.items()
                    ),
                ),
                (
                    *("method", "words", "FLOPs per byte", "GFLOP/s", "of peak GFLOP/s", "GB/s", "of peak GB/s"),
                    "of roofline",
                ),
                [_line(mark) for mark in all_marks],
            )
        )
    return drawn


def _draw(axes: Axes, marks: dict[str, list[_Mark]], ceilings: tuple[float, float], looks: Looks) -> None:
    flops_per_second, bytes_per_second = ceilings
    ridge = flops_per_second / bytes_per_second
    intensities = [ridge, *(mark.intensity for line in marks.values() for mark in line)]
    xs = (min(intensities) / 2, ridge, max(intensities) * 2)
    roof = [min(bytes_per_second * intensity, flops_per_second) / 1e9 for intensity in xs]
    axes.plot(xs, roof, color="#888", linewidth=1.4)
    for name, line in marks.items():
        points = [(mark.intensity, mark.flops_per_second / 1e9) for mark in line]
        axes.plot(*zip(*points, strict=True), linewidth=0.7, markersize=5, label=svg.short(name), **looks[name])
    axes.set(xlabel="least FLOPs per byte", ylabel="GFLOP/s")
    svg.logarithmic(axes.xaxis)
    svg.logarithmic(axes.yaxis)
    axes.grid()
    svg.legend(axes)


def _line(mark: _Mark) -> tuple[str, ...]:
    return (
        mark.name,
        f"{mark.words:,}",
        f"{mark.intensity:.3g}",
        f"{mark.flops_per_second / 1e9:.3g}",
        share(mark.flops_per_second / mark.ceilings[0]),
        f"{mark.bytes_per_second / 1e9:.3g}",
        share(mark.bytes_per_second / mark.ceilings[1]),
        share(mark.share),
    )


def _identity(record: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = ("suite", "framework", "method", "options", "vocab", "dim", "tokens", "device", "precision", "seed", "apart")
    return tuple(record[key] for key in keys)


def _mark(record: Record, values: Mapping[tuple[tuple[Any, ...], str | None], float | None]) -> _Mark:
    def value(quantity: str) -> float:
        measured = values[_identity(record), quantity]
        assert measured is not None
        return measured

    return _Mark(
        name_of(record),
        record["vocab"],
        value("least_flops"),
        value("least_bytes"),
        value("layer_seconds"),
        (value("ceiling_flops_per_second"), value("ceiling_bytes_per_second")),
        value_of(record),
    )
