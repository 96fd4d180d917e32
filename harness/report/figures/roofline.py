"""Rate of a layer compared with the ceilings of its machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.quantities import ROOFLINE
from vocabench.harness.report.figures._by_vocabulary import by_vocabulary, setting
from vocabench.harness.report.figures._figure import Axis, Figure, Form, Mark, form_of
from vocabench.harness.report.rows import Record, quantity_of, value_of
from vocabench.harness.report.units import share

_NEEDED = ("layer_seconds", *ROOFLINE)  # must be positive for a position


@dataclass(frozen=True)
class _Position:
    """Position of a layer under the roofline.

    Attributes:
        words: Size of the vocabulary.
        flops, bytes: Least FLOPs and bytes of the method.
        seconds: Time of forward and backward pass.
        ceilings: FLOP/s and bytes/s that the same process reached.
        share: Least time by the ceilings divided by `seconds`.
    """

    form: Form
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


def achieved(records: Sequence[Record]) -> list[Figure]:
    """Return achieved FLOP/s against FLOPs per byte, below the measured ceilings.

    Layers that disagree with their definition are left out.
    """
    figures = []
    values: dict[tuple[Any, ...], dict[str, float]] = {}
    agreed = [r for r in records if r["quantity"] in _NEEDED and r["agreement"] != DISAGREE]
    for r in agreed:
        if (r["value"] or 0) > 0:
            values.setdefault(_identity(r), {})[quantity_of(r)] = value_of(r)
    complete = [
        r for r in agreed if r["quantity"] == "roofline_share" and len(values.get(_identity(r), ())) == len(_NEEDED)
    ]
    for key, lines in by_vocabulary(complete, "roofline_share"):
        by_name = {name: [_position(r, values[_identity(r)]) for r in line] for name, line in lines.items()}
        positions = [position for line in by_name.values() for position in line]
        flops_per_second, bytes_per_second = (max(p.ceilings[i] for p in positions) for i in (0, 1))
        figures.append(
            Figure(
                "roofline",
                f"Roofline: {setting(key)}",
                f"The grey line is the limit of this machine: {flops_per_second / 1e9:.3g} GFLOP/s in a matrix "
                f"product and {bytes_per_second / 1e9:.3g} GB/s from memory, the best rates of any cell. A mark is the "
                "least work of a method at one size of the vocabulary, divided by the time of forward and backward "
                "pass.",
                "points",
                Axis("least FLOPs per byte"),
                Axis("GFLOP/s"),
                [Mark(p.form, p.intensity, p.flops_per_second / 1e9) for p in positions],
                (
                    *("method", "words", "FLOPs per byte", "GFLOP/s", "of peak GFLOP/s", "GB/s", "of peak GB/s"),
                    "of roofline",
                ),
                [_line(p) for p in positions],
                "; ".join(
                    f"{name}: {share(line[-1].share)} of the roofline at {line[-1].words:,} words"
                    for name, line in by_name.items()
                ),
                path=_roof(positions, flops_per_second, bytes_per_second),
                joined=True,
            )
        )
    return figures


def _roof(
    positions: Sequence[_Position], flops_per_second: float, bytes_per_second: float
) -> list[tuple[float, float]]:
    """Return the line below which all positions lie: bandwidth up to the ridge, then arithmetic."""
    ridge = flops_per_second / bytes_per_second
    intensities = [ridge, *(position.intensity for position in positions)]
    ends = (min(intensities) / 2, ridge, max(intensities) * 2)
    return [(x, min(bytes_per_second * x, flops_per_second) / 1e9) for x in ends]


def _line(position: _Position) -> tuple[str, ...]:
    return (
        position.form.name,
        f"{position.words:,}",
        f"{position.intensity:.3g}",
        f"{position.flops_per_second / 1e9:.3g}",
        share(position.flops_per_second / position.ceilings[0]),
        f"{position.bytes_per_second / 1e9:.3g}",
        share(position.bytes_per_second / position.ceilings[1]),
        share(position.share),
    )


def _identity(record: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = ("suite", "framework", "method", "options", "vocab", "dim", "tokens", "device", "precision", "seed", "apart")
    return tuple(record[key] for key in keys)


def _position(record: Record, values: Mapping[str, float]) -> _Position:
    return _Position(
        form_of(record),
        record["vocab"],
        values["least_flops"],
        values["least_bytes"],
        values["layer_seconds"],
        (values["ceiling_flops_per_second"], values["ceiling_bytes_per_second"]),
        value_of(record),
    )
