"""Which of the ways that a framework has to compute a layer is taken: the one that is fastest here, by measurement.

How fast a form is hangs on the device, the size and the batch, so it is tried and not guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

from harness import layers
from harness.timing import call_seconds
from harness.workload import Batch
from impls.spec import LayerSpec

_CALLS, _BUDGET = 3, 2.0  # of each form after the first, which compiles; seconds after which there is no further one
_GAIN = 1.1  # how much faster than a framework's first form another must be, so that no noise chooses


def fastest(
    framework: str, spec: LayerSpec, inputs: Batch, device: str, progress: Callable[[str], None]
) -> tuple[LayerSpec, dict[str, float]]:
    """`spec` with the form whose forward and backward take least time for `inputs`, and the seconds of each form.

    The framework's first form is kept where no other is a tenth faster.

    A form that the device has no kernel or no room for is passed over. Where there is but one way, nothing is measured.
    The forms are tried one after another, so that two of them are never in memory together.
    """
    names = layers.forms(framework, spec)
    if not names:
        return spec, {}
    seconds: dict[str, float] = {}
    failed: Exception | None = None
    for name in names:
        progress(f"trying {name}")
        try:
            seconds[name] = _seconds(framework, replace(spec, form=name), inputs, device)
        except (RuntimeError, NotImplementedError) as error:
            failed = error
    if failed is not None and not seconds:
        raise failed
    best = min(seconds, key=seconds.__getitem__)
    keeps = seconds.get(names[0], float("inf")) <= _GAIN * seconds[best]
    return replace(spec, form=names[0] if keeps else best), seconds


def _seconds(framework: str, spec: LayerSpec, inputs: Batch, device: str) -> float:
    work = layers.from_spec(framework, spec, device).prepare("layer", inputs.hidden_ND, inputs.targets_N)
    work()
    found = [call_seconds(work)]
    while len(found) < _CALLS and sum(found) < _BUDGET:
        found.append(call_seconds(work))
    return median(found)
