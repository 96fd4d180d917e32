"""What a layer achieves below what its machine allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness.quantities import ROOFLINE
from vocabench.harness.report import svg
from vocabench.harness.report.figures._by_vocabulary import by_vocabulary, setting
from vocabench.harness.report.figures._figure import Figure, Looks, name_of
from vocabench.harness.report.rows import Record
from vocabench.harness.report.svg import Axes
from vocabench.harness.report.table import share

_NEEDED = ("layer_seconds", *ROOFLINE)  # above zero, for a mark


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


def achieved(records: Sequence[Record], looks: Looks) -> list[Figure]:
    """Achieved FLOP/s against FLOPs a byte, below the measured ceilings; what disagrees has none."""
    made = []
    agreed = [r for r in records if r["agreement"] != "disagree"]
    values = {(_identity(r), r["quantity"]): r["value"] for r in agreed}
    told = [r for r in agreed if all((values.get((_identity(r), quantity)) or 0) > 0 for quantity in _NEEDED)]
    for number, (key, lines) in enumerate(by_vocabulary(told, "roofline_share")):
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
                axes.plot(*zip(*points, strict=True), linewidth=0.7, markersize=5, label=svg.short(name), **looks[name])
            axes.set(xlabel="least FLOPs a byte", ylabel="GFLOP/s")
            svg.logarithmic(axes.xaxis)
            svg.logarithmic(axes.yaxis)
            axes.grid()
            svg.legend(axes)

        last = {name: found[-1] for name, found in marks.items()}
        made.append(
            Figure(
                "roofline",
                f"Roofline: {setting(key)}",
                f"The grey line is the most that this machine allows: {flops_per_second / 1e9:.3g} GFLOP/s in a matrix "
                f"product, {bytes_per_second / 1e9:.3g} GB/s from memory, the best that any cell saw. A mark is the "
                "least work of a method at one size of the vocabulary over the time of forward and backward.",
                svg.drawn(
                    draw,
                    name=f"roofline{number}",
                    title=f"Roofline, {setting(key)}",
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
    keys = ("suite", "framework", "method", "options", "vocab", "dim", "tokens", "device", "precision", "seed", "apart")
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
