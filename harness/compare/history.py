"""Figures of a row that asv keeps. For all of them lower is better, as asv assumes."""

from __future__ import annotations

import numpy as np

from vocabench.harness.compare.matching import entries
from vocabench.harness.measure.timing import IN_FLIGHT_DEFINITION
from vocabench.harness.quantities import LOWER, NOT_JUDGED, QUANTITIES
from vocabench.harness.run.rows import Row

AGREEMENT = "agreement_error"
_OPPOSITE, _RELATIVE, _IN_FLIGHT = "one_minus_", "relative_", "in_flight_"
_UNITS = {"s": "seconds", "B": "bytes"}  # asv's names of the units that it scales


def figures(row: Row) -> dict[str, list[float]]:
    """Return the samples of each figure, by its name.

    - A quantity keeps its name if lower is better; otherwise it is `one_minus_<quantity>`.
    - The samples of a time are its rounds. Any other figure is a single sample: asv reports the median of the samples,
      which for the error rates of utterances, for example, is not the error rate.
    - A time measured in alternation with full softmax has a second figure `relative_<quantity>`, its ratio to full
      softmax's time in each round, which depends far less on the load of the machine.
    - A time of steps in flight is `in_flight_<quantity>`, so that asv does not mistake a CPU's times for older ones.
    - A row that disagrees with the definition has only its error.
    """
    samples: dict[str, list[float]] = {}
    for entry in entries(row):
        is_wrong = row.status != "ok" and entry.quantity != AGREEMENT
        if entry.value is None or entry.quantity in NOT_JUDGED or is_wrong:
            continue
        if entry.better != LOWER:
            samples[_OPPOSITE + entry.quantity] = [1 - entry.value]
            continue
        in_flight = entry.is_time and entry.definition == IN_FLIGHT_DEFINITION
        name = _IN_FLIGHT + entry.quantity if in_flight else entry.quantity
        samples[name] = entry.samples if entry.is_time and entry.samples else [entry.value]
        if entry.is_time and entry.rounds and not entry.is_baseline:
            samples[_RELATIVE + name] = np.exp(np.negative(entry.rounds)).tolist()
    return samples


def definition(row: Row, figure: str) -> int:
    """Return the version of the definition of a figure; asv compares only figures of the same version."""
    quantity = figure.removeprefix(_OPPOSITE).removeprefix(_RELATIVE).removeprefix(_IN_FLIGHT)
    return max(entry.definition for entry in entries(row) if entry.quantity == quantity)


def unit(figure: str) -> str:
    """Return asv's name of the unit of a figure."""
    if figure.startswith(_RELATIVE):
        return "full softmax's"
    symbol, *_ = QUANTITIES.get(figure.removeprefix(_OPPOSITE).removeprefix(_IN_FLIGHT), ("1",))
    return _UNITS.get(symbol, symbol)
