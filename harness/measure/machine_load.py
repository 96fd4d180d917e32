"""What else the machine did during a measurement: other processes, a hypervisor, interruptions."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import psutil

_SHARE_OF_OTHERS = 0.1  # of all cores; above it, other processes take time from the measured one
_SHARE_STOLEN = 0.02


class Load(TypedDict):
    """Load of the machine during a measurement, apart from the measured process.

    Attributes:
        others: Number of cores that other processes used, on average.
        stolen: Share of the machine's time that its hypervisor gave to other machines.
        switches: Involuntary context switches of the measured process per second.
        cores: Number of cores of the machine.
    """

    others: float
    stolen: float
    switches: float
    cores: int


@dataclass(frozen=True)
class _Counters:
    wall: float
    busy: float  # seconds that cores worked
    stolen: float
    own: float  # seconds that cores worked for the measured processes
    switches: int

    @classmethod
    def now(cls, colleagues: Sequence[psutil.Process]) -> _Counters:
        machine, usage = psutil.cpu_times(), resource.getrusage(resource.RUSAGE_SELF)
        of_colleagues = sum(sum(process.cpu_times()[:2]) for process in colleagues)
        busy = sum(getattr(machine, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
        stolen = getattr(machine, "steal", 0.0)
        own = usage.ru_utime + usage.ru_stime + of_colleagues
        return cls(time.monotonic(), busy, stolen, own, usage.ru_nivcsw)


class LoadMeter:
    """Measures the load from its creation on.

    Args:
        colleagues: Processes that measure together with this one.
    """

    def __init__(self, colleagues: Sequence[psutil.Process] = ()) -> None:
        self._colleagues = colleagues
        self._start = _Counters.now(colleagues)

    def read(self) -> Load:
        start, end = self._start, _Counters.now(self._colleagues)
        seconds, cores = max(end.wall - start.wall, 1e-9), psutil.cpu_count() or 1
        others = (end.busy - start.busy) - (end.own - start.own)
        return {
            "others": round(max(0.0, others / seconds), 3),
            "stolen": round((end.stolen - start.stolen) / (seconds * cores), 4),
            "switches": round((end.switches - start.switches) / seconds, 1),
            "cores": cores,
        }


def is_busy(load: Load | Mapping[str, float]) -> bool:
    """Return whether the machine did so much else that times of short or parallel work are unreliable."""
    return load["others"] > _SHARE_OF_OTHERS * load["cores"] or load["stolen"] > _SHARE_STOLEN
