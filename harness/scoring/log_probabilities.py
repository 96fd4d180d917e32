"""Files of token log-probabilities: numbers in plain text, one sentence per line, or JSON lines."""

from __future__ import annotations

import math
from pathlib import Path

from vocabench.harness.ascii_numbers import parse_number
from vocabench.harness.scoring import samples
from vocabench.impls.errors import BadInput, unknown

BASES = {"e": 1.0, "2": math.log(2), "10": math.log(10)}
FORMATS = (samples.TEXT, samples.JSON_LINES)
FIELD = "log_probs"
_ROUNDING = 1e-6  # by which the logarithm of a probability near 1 may exceed 0


def read(path: Path, text_format: str, field: str, base: str) -> list[list[float]]:
    """Read the natural log-probabilities of the tokens of each sentence.

    Args:
        path: Path of the file.
        text_format: One of `FORMATS`. A line of text has the numbers of a sentence, with spaces between them.
        field: Field of a JSON line that holds a list of numbers.
        base: Base of the logarithms in the file, one of `BASES`.

    Raises:
        BadInput: The file or one of its lines is empty, or a value is not a finite number of at most 0.
    """
    if text_format not in FORMATS:
        raise unknown("format of log-probabilities", text_format, FORMATS)
    sentences = []
    for number, line in samples.lines(path):
        place = f"{path}, line {number:,}"
        values = _numbers(place, line) if text_format == samples.TEXT else _field(path, number, line, field)
        if not values:
            raise BadInput(f"{place}: the line is empty: allowed: a log-probability for each token")
        for value in values:
            if not (math.isfinite(value) and value <= _ROUNDING):
                raise BadInput(f"{place}: log-probability {value:g}: allowed: finite numbers up to 0")
        sentences.append([value * BASES[base] for value in values])
    if not sentences:
        raise BadInput(f"{path}: the file is empty: allowed: one sentence per line")
    return sentences


def _numbers(place: str, line: str) -> list[float]:
    try:
        return [parse_number(part) for part in line.split()]
    except ValueError as error:
        raise BadInput(f"{place}: {error}: allowed: numbers with spaces between them") from None


def _field(path: Path, number: int, line: str, field: str) -> list[float]:
    values = samples.json_object(path, number, line).get(field)
    if not isinstance(values, list) or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise BadInput(f"{path}, line {number:,}: {field} is not a list of numbers: allowed: one number for each token")
    return [float(value) for value in values]
