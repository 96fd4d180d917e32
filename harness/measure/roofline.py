"""Distance of a time from what the machine allows (Williams, Waterman, Patterson 2009, Roofline).

Two ceilings are measured: the FLOP/s of a large matrix product and the bytes/s of adding one large array to another.
The framework itself computes both, on the same device and threads. Work that takes F FLOPs and moves B bytes cannot
take less time than max(F / FLOP/s, B / bytes/s).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

from vocabench.harness import registry
from vocabench.harness.measure.timing import Work, call_seconds
from vocabench.harness.run.rows import Measurement
from vocabench.impls.spec import LeastWork

_SECONDS = 0.3  # duration of the calls for each ceiling
_LONG_ENOUGH = 0.01  # seconds of a matrix product that keeps the device busy
_SMALLEST, _LARGEST = 512, 8192  # rows of its matrices
_ADDED = 2**25  # float32 entries, 128 MiB: two such arrays exceed the caches of most processors


@dataclass(frozen=True)
class Ceilings:
    """Samples of both rates. The best sample is the ceiling, because disturbances can only lower a rate."""

    flops_per_second: tuple[float, ...]
    bytes_per_second: tuple[float, ...]

    def joined(self, other: Ceilings) -> Ceilings:
        """Return the samples of both. Samples from two moments are safer, as all of one may be disturbed."""
        return Ceilings(self.flops_per_second + other.flops_per_second, self.bytes_per_second + other.bytes_per_second)

    def seconds(self, least: LeastWork) -> float:
        """Return the least time that both ceilings allow for this work."""
        return max(least.flops / max(self.flops_per_second), least.bytes / max(self.bytes_per_second))


def ceilings(framework: str, device: str, dtype: str) -> Ceilings:
    """Measure both ceilings. This takes about a second."""
    adapter = registry.adapter(framework)
    size = _SMALLEST
    while True:
        product = adapter.prepare_product(size, device, dtype)
        product()  # compiles
        if size == _LARGEST or min(call_seconds(product) for _ in range(2)) > _LONG_ENOUGH:
            break
        size *= 2
    return Ceilings(
        flops_per_second=_rates(product, 2.0 * size**3),
        bytes_per_second=_rates(adapter.prepare_add(_ADDED, device), 3.0 * 4 * _ADDED),  # two reads and one write
    )


@cache
def first_ceilings(framework: str, device: str, dtype: str) -> Ceilings:
    """Measure the ceilings once in this process, for a first estimate of what takes too long."""
    return ceilings(framework, device, dtype)


def _rates(work: Work, amount: float) -> tuple[float, ...]:
    work()
    rates = []
    deadline = time.perf_counter() + _SECONDS
    while not rates or time.perf_counter() < deadline:
        rates.append(amount / call_seconds(work))
    return tuple(rates)


def measurements(layer_seconds: Measurement, least: LeastWork, measured: Ceilings) -> list[Measurement]:
    """Return the roofline quantities of a row that holds `layer_seconds`."""
    flop_rate, byte_rate = max(measured.flops_per_second), max(measured.bytes_per_second)
    seconds = measured.seconds(least)
    low, high = layer_seconds.low, layer_seconds.high
    return [
        Measurement(
            "roofline_share",
            seconds / layer_seconds.value,
            [seconds / sample for sample in layer_seconds.samples],
            low=seconds / high if high else None,
            high=seconds / low if low else None,
        ),
        Measurement("least_flops", least.flops, [least.flops]),
        Measurement("least_bytes", least.bytes, [least.bytes]),
        Measurement("ceiling_flops_per_second", flop_rate, list(measured.flops_per_second)),
        Measurement("ceiling_bytes_per_second", byte_rate, list(measured.bytes_per_second)),
    ]
