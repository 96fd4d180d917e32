"""Which of the ways that a framework has to compute a layer is taken: the one that is fastest here, by measurement.

How fast a form is hangs on the device, the size and the batch, so it is tried and not guessed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

from vocabench.harness import layers
from vocabench.harness.measure.timing import Steady, calls_in_flight
from vocabench.harness.measure.workload import Batch
from vocabench.impls.errors import BadInput
from vocabench.impls.spec import LayerSpec

_CALLS, _BUDGET = 9, 2.0  # of each form after the first, which compiles; seconds after which there is no further one
_GAIN = 1.1  # how much faster than a framework's first form another must be, so that no noise chooses


def fastest_form(
    framework: str, spec: LayerSpec, inputs: Batch, device: str, progress: Callable[[str], None]
) -> tuple[LayerSpec, dict[str, float | str]]:
    """`spec` with the form whose forward and backward take least time for `inputs`; and for each form, the framework's
    first one first, the seconds or why it cannot run here.

    The framework's first form is kept where no other is a tenth faster.

    A form that the device has no kernel or no room for is passed over. Where there is but one way, nothing is measured.
    The forms are tried one after another, so that two of them are never in memory together.
    """
    names = layers.forms(framework, spec, device)
    if not names:
        return spec, {}
    seconds: dict[str, float] = {}
    failed: dict[str, Exception] = {}
    for name in names:
        progress(f"trying {name}")
        try:
            seconds[name] = _seconds(framework, replace(spec, form=name), inputs, device)
        except BadInput:
            raise
        except Exception as error:  # of a class of the framework's own
            failed[name] = error.with_traceback(None)  # which would hold the layer
        gc.collect()
    if not seconds:
        raise failed[names[-1]]
    best = min(seconds, key=seconds.__getitem__)
    keeps = seconds.get(names[0], float("inf")) <= _GAIN * seconds[best]
    tried = {name: seconds[name] if name in seconds else _reason(failed[name]) for name in names}
    return replace(spec, form=names[0] if keeps else best), tried


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _seconds(framework: str, spec: LayerSpec, inputs: Batch, device: str) -> float:
    """Of the shortest call: one to which memory was given anew, or that others slowed, says nothing of the form."""
    layer, calls = layers.from_spec(framework, spec, device), calls_in_flight(device)
    work = layer.prepare("layer", inputs.hidden_ND, inputs.targets_N, calls=calls)
    work()
    steady, found = Steady(), list[float]()
    while not found or (len(found) < _CALLS and sum(found) < _BUDGET):
        found += steady.seconds([work])
    return min(found) / calls
