"""What asv keeps of a row: figures of which lower is better, as all of asv's are."""

from __future__ import annotations

import numpy as np

from vocabench.harness.compare.matching import entries
from vocabench.harness.measure.timing import IN_FLIGHT_DEFINITION
from vocabench.harness.quantities import LOWER, NOT_JUDGED, QUANTITIES
from vocabench.harness.run.store import Row

AGREEMENT = "agreement_error"
_OPPOSITE, _RELATIVE, _IN_FLIGHT = "one_minus_", "relative_", "in_flight_"
_UNITS = {"s": "seconds", "B": "bytes"}  # as asv calls those that it can scale


def figures(row: Row) -> dict[str, list[float]]:
    """Samples by name: of a quantity of which lower is better under its own, of any other as `one_minus_<quantity>`.

    A time's samples are its rounds. Any other figure is one sample, for asv's figure is the median of them, and that of
    the utterances' error rates, say, is not the error rate.

    A time that was taken in turns with full softmax is there as `relative_<quantity>` too, the share of full softmax's
    time round by round, which a busy machine moves far less. One of steps in flight is `in_flight_<quantity>`: by the
    same name asv would take a CPU's times for older ones. A row that disagrees with the definition has no figure but
    its error.
    """
    found: dict[str, list[float]] = {}
    for entry in entries(row):
        wrong = row["status"] != "ok" and entry.quantity != AGREEMENT
        if entry.value is None or entry.quantity in NOT_JUDGED or wrong:
            continue
        if entry.better != LOWER:
            found[_OPPOSITE + entry.quantity] = [1 - entry.value]
            continue
        in_flight = entry.is_time and entry.definition == IN_FLIGHT_DEFINITION
        name = _IN_FLIGHT + entry.quantity if in_flight else entry.quantity
        found[name] = entry.samples if entry.is_time and entry.samples else [entry.value]
        if entry.is_time and entry.rounds and not entry.is_baseline:
            found[_RELATIVE + name] = np.exp(np.negative(entry.rounds)).tolist()
    return found


def definition(row: Row, figure: str) -> int:
    """Which one of the names of `figures` was measured by; asv compares none of two."""
    quantity = figure.removeprefix(_OPPOSITE).removeprefix(_RELATIVE).removeprefix(_IN_FLIGHT)
    return max(entry.definition for entry in entries(row) if entry.quantity == quantity)


def unit(figure: str) -> str:
    """Of one of the names of `figures`, as asv calls it."""
    if figure.startswith(_RELATIVE):
        return "full softmax's"
    given, *_ = QUANTITIES.get(figure.removeprefix(_OPPOSITE).removeprefix(_IN_FLIGHT), ("1",))
    return _UNITS.get(given, given)
