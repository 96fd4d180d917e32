"""How often the intervals of times hold on a machine, by comparisons of a layer with a second copy of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vocabench.harness.measure.process_spread import class_deviation, interval, spreads

_DRAWS = 2000  # simulated runs: the error of their coverage is half a per cent


@dataclass(frozen=True)
class Coverage:
    """How often 95 % intervals of a class of times contained the true ratio, which is 1.

    Attributes:
        times: Number of times in the class.
        deviation: Standard deviation between processes of the logarithm of the ratio.
        coverage: Share of the intervals that contained 1.
        half_width: Median half width of the intervals, relative.
    """

    times: int
    deviation: float
    coverage: float
    half_width: float


def coverage(
    logs_by_class: Mapping[str, Sequence[Sequence[float]]], *, processes: int, draws: int = _DRAWS, seed: int = 0
) -> dict[str, Coverage]:
    """Simulate runs by drawing a few of the measured processes of each time, and count how often intervals hold.

    Args:
        logs_by_class: For each class of times, and each time in it, the logarithms of its A/A ratio in many processes.
        processes: Number of processes of a simulated run.
        draws: Number of simulated runs.
        seed: Seed of the draws.

    Raises:
        ValueError: A time was measured in fewer than `processes` processes.
    """
    rng = np.random.default_rng(seed)
    found: dict[str, Coverage] = {}
    for name, series in logs_by_class.items():
        if least := [len(logs) for logs in series if len(logs) < processes]:
            raise ValueError(f"a time in {least[0]} processes: allowed: at least {processes}")
        held, widths = 0, list[float]()
        for _ in range(draws):
            chosen = [rng.choice(np.asarray(logs), processes, replace=False).tolist() for logs in series]
            of_cells = spreads(chosen)
            assert of_cells is not None
            intervals = [interval(values, spread) for values, spread in zip(chosen, of_cells, strict=True)]
            held += sum(each.low <= 1.0 <= each.high for each in intervals)
            widths += [math.log(each.high / each.low) / 2 for each in intervals]
        found[name] = Coverage(len(series), class_deviation(series), held / len(widths), float(np.median(widths)))
    return found
