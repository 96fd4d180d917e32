"""Rows: what a run keeps of one cell, as typed records.

`Row.from_json` checks everything that tables, reports, gates and `publish` rely on, so that none of them has to.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from vocabench.harness.quantities import LOWER, QUANTITIES
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.schema import (
    LARGEST,
    above_zero,
    all_of,
    any_of,
    boolean,
    list_of,
    map_of,
    number,
    one_of,
    optional,
    plain,
    plain_numbers,
    record,
    text,
    tuple_of,
    whole,
)
from vocabench.impls.errors import BadInput

SCHEMA = 1

_ANSWERED = ("ok", "disagree")
STATUSES = (*_ANSWERED, "timeout", "oom", "error", "refused", "skipped")

_REQUIRED = ("key", "cell", "status", "measurements", "provenance")


class OtherSchema(BadInput):
    """Rows of an incompatible version of this program."""


@dataclass(frozen=True)
class Ratio:
    """Figure of full softmax divided by that of the measured method, from interleaved rounds.

    Attributes:
        value, low, high: Ratio with its 95 % interval.
        samples: Ratio of each round; NaN where it is not finite.
        baseline_samples: Figure of full softmax in each round.
        extra: Fields written by other versions, kept unchanged.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    samples: list[float] = field(default_factory=list)
    baseline_samples: list[float] = field(default_factory=list)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """One quantity of one cell.

    Attributes:
        value: The figure; NaN if it is not finite.
        samples: Samples that `value` summarizes; NaN where they are not finite.
        low, high: 95 % interval of `value`, if there is one.
        ratio: Comparison with full softmax, for a time measured in alternation with it.
        detail: Further results, such as a training curve.
        unit, better: As in `QUANTITIES`, unless given.
        extra: Fields written by other versions, kept unchanged.
    """

    quantity: str
    value: float
    samples: list[float] = field(default_factory=list)
    low: float | None = None
    high: float | None = None
    ratio: Ratio | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    unit: str = ""
    better: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.unit and self.better):
            unit, better, _ = QUANTITIES[self.quantity]
            object.__setattr__(self, "unit", self.unit or unit)
            object.__setattr__(self, "better", self.better or better)

    @property
    def processes(self) -> Sequence[Mapping[str, Any]]:
        """For each process in which a time was measured: its number of rounds, layout and load of the machine.

        Empty for other quantities, and for times in rows from before there were several processes.
        """
        return self.detail.get("processes", ())

    @property
    def loads(self) -> list[Mapping[str, Any]]:
        """The load of the machine in each process that recorded it, as in `machine_load.Load`."""
        return [process for process in self.processes if {"others", "stolen", "cores"} <= set(process)]

    @property
    def finite_value(self) -> float | None:
        return self.value if math.isfinite(self.value) else None


@dataclass(frozen=True)
class Provenance:
    """Origin of a row: code, machine, library versions, framework and data.

    Attributes:
        framework: Versions, device and threads of the framework.
        started: Start time, in ISO format.
        seconds: Duration of the measurement.
        extra: Fields written by other versions, kept unchanged.
    """

    code: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    framework: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    seconds: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """Result of one cell.

    Attributes:
        key: Key of the cell.
        status: One of `STATUSES`.
        message: Reason for any status but "ok".
        agreement: Comparison with the definition, as `vocabench.harness.measure.agreement.summary` returns it.
        extra: Fields written by other versions, kept unchanged.
    """

    key: str
    cell: Cell
    status: str
    message: str = ""
    measurements: Sequence[Measurement] = field(default_factory=list)
    agreement: Mapping[str, Any] = field(default_factory=dict)
    provenance: Provenance = field(default_factory=Provenance)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, fields: Any, *, is_plain: bool = False) -> Row:
        """Check and convert an object of a results file.

        Args:
            fields: The object.
            is_plain: Whether `schema.plain` is known to accept it.

        Raises:
            OtherSchema: The schema version is not `SCHEMA`.
            BadInput: A field is missing or invalid.
        """
        version = fields.get("schema") if isinstance(fields, dict) else None
        if type(version) is not int or version != SCHEMA:  # True and 1.0 equal 1
            raise OtherSchema(f"schema version {version!r}: allowed: {SCHEMA}")
        if missing := [name for name in _REQUIRED if name not in fields]:
            raise BadInput(f"not a row: {', '.join(missing)} missing: allowed: lines written by 'vocabench run'")
        if wrong := ("" if is_plain else plain(fields)) or _WITH_CELL(fields):
            raise BadInput(f"not a row: {wrong.removeprefix('.')}")
        cell = Cell.from_json(fields["cell"])
        if wrong := _ROW(fields):
            raise BadInput(f"not a row: {wrong.removeprefix('.')}")
        return _decode(
            cls,
            {name: value for name, value in fields.items() if name != "schema"},
            cell=cell,
            measurements=[_measurement(measurement) for measurement in fields["measurements"]],
            provenance=_decode(Provenance, fields["provenance"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **storable(self)}

    @property
    def is_measured(self) -> bool:
        return self.status in _ANSWERED

    @property
    def verdict(self) -> str:
        """Whether the layer agrees with its definition: "agree", "disagree", or "" if that was not checked."""
        return self.agreement.get("verdict", "")

    @property
    def disagreements(self) -> Sequence[str]:
        return self.agreement.get("disagreements", ())

    @property
    def agrees(self) -> bool:
        return "disagree" not in (self.status, self.verdict)


def storable(value: Any) -> Any:
    """Convert records, and anything in them, to what a results file can hold.

    NaN and infinity, which JSON does not have, become null. Lone surrogates, which UTF-8 cannot encode, are escaped.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, float):
        return value if abs(value) < LARGEST else None
    if isinstance(value, Mapping):
        return {name: storable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    if dataclasses.is_dataclass(value):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        extra = fields.pop("extra", {})
        return storable({**fields, **extra})
    return value


_RecordT = TypeVar("_RecordT")


def _decode(kind: type[_RecordT], fields: Mapping[str, Any], **converted: Any) -> _RecordT:
    """Make a record of `fields`, some of which are replaced by their `converted` values."""
    names = _names(kind)
    if fields.keys() <= names:
        return kind(**{**fields, **converted})
    known = {name: value for name, value in fields.items() if name in names}
    extra = {name: value for name, value in fields.items() if name not in names}
    return kind(**known | converted, extra=extra)  # type: ignore[call-arg]


@cache
def _names(kind: type) -> frozenset[str]:
    return frozenset(item.name for item in dataclasses.fields(kind)) - {"extra"}


def _measurement(fields: Mapping[str, Any]) -> Measurement:
    ratio = fields.get("ratio")
    if ratio is not None:
        samples = {name: _numbers(ratio.get(name, ())) for name in ("samples", "baseline_samples")}
        ratio = _decode(Ratio, ratio, **samples)
    (value,) = _numbers([fields.get("value")])
    return _decode(
        Measurement,
        fields,
        value=value,
        samples=_numbers(fields.get("samples", ())),
        ratio=ratio,
        unit=fields.get("unit") or "1",
        better=fields.get("better") or LOWER,
    )


def _numbers(values: Sequence[float | None]) -> list[float]:
    if None in values:
        return [math.nan if value is None else value for value in values]
    return list(values)  # type: ignore[arg-type]


_POINT = record({}, {name: optional(number) for name in ("perplexity", "perplexity_before", "perplexity_after")})
_CURVE_POINT = all_of(any_of(record({"step": number}), record({"epoch": number})), _POINT)
_PART = record({"value": optional(number)})

_LENGTH = record(
    {
        "utterances": whole(1),
        "units_per_utterance": number,
        **dict.fromkeys(("audio_seconds", "decode_seconds"), above_zero),
    }
)

_PROCESS = record({"rounds": whole(1)}, dict.fromkeys(("others", "stolen", "switches", "cores"), number))
_SPREAD = record({"class": text, "ratio_deviation": number, "deviation": number, "freedom": above_zero})

_DETAIL = record(
    {},
    {
        "processes": list_of(_PROCESS),
        "spread": _SPREAD,
        **dict.fromkeys(("form", "baseline_form", "weights"), text),
        "formulation": optional(text),
        "timing": whole(1),
        "counting": whole(1),
        "tried": map_of(any_of(number, text)),
        "split": text,
        "curve": list_of(_CURVE_POINT),
        "reorganizations": list_of(all_of(record({"step": number}), _POINT)),
        "by_length": list_of(_LENGTH),
        "clusters": list_of(list_of(text)),
        "examples": list_of(
            any_of(
                record({"text": text, "summaries": list_of(text), "ours": text}),
                record({"id": text, "language": text, "reference": text, "ours": text}),
            )
        ),
        "counts": list_of(tuple_of(whole(0), whole(0), whole(0), whole(0))),
        "languages": any_of(map_of(_PART), list_of(text)),
        "groups": map_of(_PART),
    },
)
_RATIO = record(
    {},
    {
        **dict.fromkeys(("value", "low", "high"), optional(above_zero)),
        **dict.fromkeys(("samples", "baseline_samples"), plain_numbers),
    },
)
_MEASUREMENT = record(
    {"quantity": text},
    {
        **dict.fromkeys(("value", "low", "high"), optional(number)),
        **dict.fromkeys(("unit", "better"), text),
        "samples": plain_numbers,
        "ratio": optional(_RATIO),
        "detail": _DETAIL,
    },
)
_AGREEMENT = record({}, {"verdict": one_of("agree", "disagree"), "disagreements": list_of(text)})
_PROVENANCE = record(
    {},
    {
        "code": record({}, {"dirty": optional(boolean)}),
        **dict.fromkeys(("machine", "versions", "framework", "data"), record({})),
        "started": text,
        "seconds": optional(number),
    },
)
_WITH_CELL = record({"cell": record({})})
_SETTINGS = record({}, dict.fromkeys(("objective", "split", "units"), text))

_ROW = record(
    {
        "key": text,
        "cell": record({"settings": _SETTINGS}),
        "status": one_of(*STATUSES),
        "measurements": list_of(_MEASUREMENT),
        "provenance": _PROVENANCE,
    },
    {"message": text, "agreement": _AGREEMENT},
)
