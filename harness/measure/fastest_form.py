"""The choice of the form in which a framework computes a layer: the fastest one here, by measurement.

The speed of a form depends on the device, the size and the batch, so it is measured instead of guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vocabench.harness import layers
from vocabench.harness.measure.memory import give_back_freed
from vocabench.harness.measure.timing import Steady, calls_in_flight
from vocabench.harness.measure.workload import Batch
from vocabench.impls.errors import BadInput
from vocabench.impls.forms import Form
from vocabench.impls.spec import LayerSpec

_CALLS, _BUDGET = 9, 2.0  # timed calls of each form after the one that compiles, and the seconds they may take
_GAIN = 1.1  # another form must be this much faster than the preferred one, so that noise does not decide


def fastest_form(
    framework: str, spec: LayerSpec, inputs: Batch, device: str, progress: Callable[[str], None]
) -> tuple[LayerSpec, dict[str, float | str]]:
    """Find the form whose forward and backward pass take the least time for `inputs`.

    The framework's preferred form is kept unless another one is a tenth faster. A form that the device has no kernel
    or no memory for is skipped. The forms are tried one after another, so that no two of them are in memory together.
    If there is only one form, nothing is measured.

    Returns:
        `spec` with the chosen form, and for the label of each form, the preferred one first, its seconds or the reason
        why it cannot run here.
    """
    forms = layers.forms(framework, spec, device)
    if not forms:
        return spec, {}
    seconds: dict[Form, float] = {}
    failures: dict[Form, Exception] = {}
    for form in forms:
        progress(f"trying {form.label}")
        try:
            seconds[form] = _seconds(framework, replace(spec, form=form.id), inputs, device)
        except BadInput:
            raise
        except Exception as error:  # frameworks raise errors of their own classes
            failures[form] = error.with_traceback(None)  # the traceback would keep the layer alive
        give_back_freed()  # with a million words, what two forms leave behind does not fit next to a third
    if not seconds:
        raise failures[forms[-1]]
    preferred, fastest = forms[0], min(seconds, key=seconds.__getitem__)
    keeps = seconds.get(preferred, float("inf")) <= _GAIN * seconds[fastest]
    tried = {form.label: seconds[form] if form in seconds else _reason(failures[form]) for form in forms}
    return replace(spec, form=(preferred if keeps else fastest).id), tried


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _seconds(framework: str, spec: LayerSpec, inputs: Batch, device: str) -> float:
    """Return the seconds of the fastest call. Calls with fresh pages or interruptions are not representative."""
    layer, calls = layers.from_spec(framework, spec, device), calls_in_flight(device)
    work = layer.prepare("layer", inputs.hidden_ND, inputs.targets_N, calls=calls)
    work()
    steady, samples = Steady(), list[float]()
    while not samples or (len(samples) < _CALLS and sum(samples) < _BUDGET):
        samples += steady.seconds([work])
    return min(samples) / calls
