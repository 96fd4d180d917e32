"""What a row holds, as far as anything reads it: tables, reports, gates and `publish` may take it for granted."""

from __future__ import annotations

from vocabench.harness.run.cells import Cell
from vocabench.harness.run.schema import (
    above_zero,
    boolean,
    both,
    each,
    either,
    exactly,
    maybe,
    named,
    number,
    one_of,
    plain,
    record,
    text,
    whole,
)
from vocabench.harness.run.store import Row
from vocabench.impls.errors import BadInput

STATUSES = ("ok", "disagree", "timeout", "oom", "error", "refused", "skipped")

_POINT = record({}, {name: maybe(number) for name in ("perplexity", "perplexity_before", "perplexity_after")})
_PLACED = both(either(record({"step": number}), record({"epoch": number})), _POINT)
_PART = record({"value": maybe(number)})

_LENGTH = record(
    {
        "utterances": whole(1),
        "units_per_utterance": number,
        **dict.fromkeys(("audio_seconds", "decode_seconds"), above_zero),
    }
)

_DETAIL = record(
    {},
    {
        "formulation": maybe(text),
        "timing": whole(1),
        "counting": whole(1),
        "tried": named(either(number, text)),
        "split": text,
        "curve": each(_PLACED),
        "reorganizations": each(both(record({"step": number}), _POINT)),
        "by_length": each(_LENGTH),
        "clusters": each(each(text)),
        "examples": each(
            either(
                record({"text": text, "summaries": each(text), "ours": text}),
                record({"id": text, "language": text, "reference": text, "ours": text}),
            )
        ),
        "counts": each(exactly(whole(0), whole(0), whole(0), whole(0))),
        "languages": either(named(_PART), each(text)),
        "groups": named(_PART),
    },
)
_RATIO = record(
    {},
    {
        **dict.fromkeys(("value", "low", "high"), maybe(above_zero)),
        **dict.fromkeys(("samples", "baseline_samples"), each(maybe(number))),
    },
)
_MEASUREMENT = record(
    {"quantity": text},
    {
        **dict.fromkeys(("value", "low", "high"), maybe(number)),
        **dict.fromkeys(("unit", "better"), text),
        "samples": each(maybe(number)),
        "ratio": maybe(_RATIO),
        "detail": _DETAIL,
    },
)
_AGREEMENT = record({}, {"verdict": one_of("agree", "disagree"), "disagreements": each(text)})
_PROVENANCE = record(
    {},
    {
        "code": record({}, {"dirty": maybe(boolean)}),
        **dict.fromkeys(("machine", "versions", "framework", "data"), record({})),
        "started": text,
        "seconds": maybe(number),
    },
)
_SETTINGS = record({}, dict.fromkeys(("objective", "split", "units"), text))

_ROW = record(
    {
        "key": text,
        "cell": record({"settings": _SETTINGS}),
        "status": one_of(*STATUSES),
        "measurements": each(_MEASUREMENT),
        "provenance": _PROVENANCE,
    },
    {"message": text, "agreement": _AGREEMENT},
)


def check(row: Row) -> None:
    """Raises `BadInput` where the row is not of the form that `vocabench run` gives it."""
    if wrong := plain(row):
        raise BadInput(f"no row: {wrong.removeprefix('.')}")
    Cell.from_json(row["cell"])
    if wrong := _ROW(row):
        raise BadInput(f"no row: {wrong.removeprefix('.')}")
