"""Sweeps of a suite with the words of their layers split over several devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vocabench.harness import registry

Sweep = Mapping[str, Any]  # one [[sweep]] of a suite's file, with the keys of `suites._SWEEP`

_WHOLE, _SPLIT = "timing", "parallel"


def split_over_devices(sweeps: Sequence[Sweep], devices: int) -> list[Sweep]:
    """Return the sweeps that time layers, with the words of these layers split over devices.

    What cannot be measured of such layers is left out: settings, and quantities such as the step of a whole model.
    """
    return [_split(sweep, devices) for sweep in sweeps if sweep["task"] in (_WHOLE, _SPLIT)]


def _split(sweep: Sweep, devices: int) -> Sweep:
    allowed = registry.task(_SPLIT).settings
    settings = {name: value for name, value in sweep.get("settings", {}).items() if name in allowed}
    if "quantities" in settings:
        known = allowed["quantities"].values
        settings["quantities"] = [name for name in settings["quantities"] if name in known]
        if not settings["quantities"]:
            del settings["quantities"]
    return {**sweep, "task": _SPLIT, "settings": settings | {"devices": devices}}
