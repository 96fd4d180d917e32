"""Timing of one method in one framework at one vocabulary size, interleaved with full softmax in the same framework."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from vocabench.harness import layers
from vocabench.harness.measure import agreement, roofline
from vocabench.harness.measure.fastest_form import fastest_form
from vocabench.harness.measure.memory import DEFINITION, freed_given_back, give_back_freed, peak_bytes
from vocabench.harness.measure.new_process import in_new_process
from vocabench.harness.measure.timing import Work, call_seconds, calls_in_flight
from vocabench.harness.measure.workload import Batch, batch, zipf_counts
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.run.settings import Names, Setting
from vocabench.harness.tasks.shared import feasible
from vocabench.harness.tasks.shared.paired import BASELINE, DECODING, ON_REQUEST, Pair, check_rounds, timing_settings
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.spec import baseline_of, parameters, zipf_batch, zipf_spec
from vocabench.harness.tasks.shared.task import Task
from vocabench.impls.contract import Layer
from vocabench.impls.models.language_model import LanguageModelConfig
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.options import Number
from vocabench.impls.spec import LayerSpec

# Quantities of the layer alone, with their work and optimizer: Adagrad as in the SOHSM paper, without clipping, which
# would need the norm of the whole model, and without weight decay, which would update every row in every step.
_OPTIMIZER = Optimizer(clip_norm=0.0)
_WORK = {
    "layer_seconds": ("layer", _OPTIMIZER),
    "layer_step_seconds": ("layer_step", _OPTIMIZER),
    "row_sparse_step_seconds": ("layer_step", replace(_OPTIMIZER, weight_decay=0.0, row_sparse=True)),
}

SETTINGS: dict[str, Setting] = {
    "quantities": Names(
        (*_WORK, "step_seconds", *DECODING, "peak_bytes"),
        (*_WORK, "step_seconds", *DECODING, *ON_REQUEST, "peak_bytes"),
        f"what to time; {', '.join(ON_REQUEST)} only if they are asked for",
    ),
    **timing_settings(processes=3, rounds=4, budget=10.0),
    "decode_rows": Number(128, 1, 10**6, "hidden vectors decoded as one batch"),
    "checked_tokens": Number(48, 1, 10**6, "tokens on which agreement is checked at this size before timing"),
    **feasible.SETTINGS,
}

_CALLS, _BUDGET = 3, 4.0  # calls after the one that compiles, and seconds after which no further call starts
_SMALL_VOCAB, _SMALL_DIM = 512, 16  # supported by every form
_STEPS_BT = 20  # time steps of a batch of the whole model


def run(cell: Cell, progress: Callable[[str], None]) -> Result:
    check_rounds(cell.settings)
    spec, layer = zipf_spec(cell), None
    plain = baseline_of(cell, spec)
    feasible.check_feasible(cell, spec, plain, progress)
    inputs = zipf_batch(cell)
    wanted = cell.settings["quantities"]
    measurements: list[Measurement] = []
    compiling = None  # seconds of compilation in the first call
    if "peak_bytes" in wanted:
        # Before the forms are tried: freed memory hides the next peak, and compiled code takes no time to compile.
        layer = _layer(cell, spec)
        progress("peak memory")
        measurements, compiling = _peak(cell, layer, inputs)
    spec, tried = fastest_form(cell.framework, spec, inputs, cell.device, progress)
    preferred = next((form.id for form in layers.forms(cell.framework, spec, cell.device)), "")
    if layer is None or spec.form != preferred:
        layer = _layer(cell, spec)
        if "peak_bytes" in wanted:
            progress("peak memory")
            anew = cell.device == "cpu"
            measurements, compiling = _peak_anew(cell, spec.form) if anew else _peak(cell, layer, inputs)

    progress("agreement at this size")
    checked = cell.settings["checked_tokens"]
    sample = Batch(inputs.hidden_ND[:checked], inputs.targets_N[:checked])
    summary = agreement.summary(agreement.check_layer(layer, sample, k=min(10, cell.vocab), whole_vocabulary=False))
    least = layer.least_work(inputs.targets_N)
    del layer
    give_back_freed()  # the float64 arrays too: full softmax needs the room

    if cell.method == BASELINE:
        plain = spec  # a second copy: an A/A comparison
    else:
        plain, _ = fastest_form(cell.framework, plain, inputs, cell.device, progress)
    rates = None
    if "layer_seconds" in wanted and least is not None:
        longest = cell.settings["longest_step"]
        rates = roofline.first_ceilings(*_device(cell)) if longest else _ceilings(cell, progress)
    times = _times(Pair(cell, spec, plain), inputs, progress)
    for measurement in times:
        if tried and measurement.quantity in _WORK:
            measurement.detail["tried"] = tried
        if measurement.quantity == "layer_seconds":
            first_call = measurement.detail.pop("first_call")
            calls = calls_in_flight(cell.device)
            seconds = max(0.0, first_call - calls * measurement.value) if compiling is None else compiling
            measurements.append(Measurement("compile_seconds", seconds, [seconds]))
    measurements = [*times, *measurements, parameters(spec)]
    if rates is not None and least is not None:
        timed_layer = next(m for m in measurements if m.quantity == "layer_seconds")
        measurements += roofline.measurements(timed_layer, least, rates.joined(_ceilings(cell, progress)))
    return Result(measurements, summary)


def repeat(cell: Cell, first: Sequence[Measurement], progress: Callable[[str], None]) -> list[Measurement]:
    """Measure the times of a cell in another process, in the forms that `first` was measured in."""
    forms = next(measurement.detail for measurement in first if measurement.processes)
    spec = zipf_spec(cell)
    plain = replace(baseline_of(cell, spec), form=forms["baseline_form"])
    return _times(Pair(cell, replace(spec, form=forms["form"]), plain), zipf_batch(cell), progress)


def _times(pair: Pair, inputs: Batch, progress: Callable[[str], None]) -> list[Measurement]:
    """Time all quantities that the cell wants. The layers are gone when the whole model is timed."""
    cell, wanted = pair.cell, pair.cell.settings["quantities"]
    found: list[Measurement] = []
    pair.create()
    calls = calls_in_flight(cell.device)
    for quantity in wanted:
        if quantity in _WORK and (pair.layer.reaches_few_rows() or not _WORK[quantity][1].row_sparse):
            progress(quantity)
            baseline, other = (_work(layer, quantity, inputs, calls) for layer in (pair.baseline, pair.layer))
            result, measurement = pair.timed(quantity, [baseline], [other], {}, calls)
            measurement.detail["formulation"] = pair.layer.formulation()  # complete after its first call
            if quantity == "layer_seconds":
                measurement.detail["first_call"] = result.other.first_call
            found.append(measurement)
            del baseline, other
            gc.collect()
    formulation = pair.layer.formulation()
    if {*DECODING, *ON_REQUEST} & set(wanted):
        progress("decoding")
        # The steps timed above changed both, by a number that depends on the machine.
        pair.baseline.load(pair.plain.initial_parameters())
        pair.layer.load(pair.spec.initial_parameters())
        rows = cell.settings["decode_rows"]
        hidden_ND, targets_N = np.resize(inputs.hidden_ND, (rows, cell.dim)), np.resize(inputs.targets_N, rows)
        found += pair.decoding(hidden_ND, wanted, targets_N)
    pair.delete()
    gc.collect()
    if "step_seconds" in wanted:
        progress("step_seconds")
        steps = pair.layout.create(lambda: _model_step(cell, pair.plain), lambda: _model_step(cell, pair.spec))
        found.append(pair.timed("step_seconds", steps[:1], steps[1:], {"formulation": formulation})[1])
    return found


def _ceilings(cell: Cell, progress: Callable[[str], None]) -> roofline.Ceilings:
    progress("ceilings of this machine")
    return roofline.ceilings(*_device(cell))


def _device(cell: Cell) -> tuple[str, str, str]:
    return cell.framework, cell.device, cell.precision


def _layer(cell: Cell, spec: LayerSpec) -> Layer:
    return layers.from_spec(cell.framework, spec, cell.device)


def _work(layer: Layer, quantity: str, inputs: Batch, calls: int) -> Work:
    work, optimizer = _WORK[quantity]
    return layer.prepare(work, inputs.hidden_ND, inputs.targets_N, optimizer=optimizer, calls=calls)


def _model_step(cell: Cell, spec: LayerSpec) -> Work:
    config = LanguageModelConfig(embedding=cell.dim, hidden=cell.dim, seed=cell.seed)
    model = layers.create_network(cell.framework, spec, config, cell.device)
    rows = max(1, cell.tokens // _STEPS_BT)
    ids = batch(spec.counts, tokens=rows * (_STEPS_BT + 1), dim=1, seed=cell.seed).targets_N.astype(np.int32)
    text_BT = ids.reshape(rows, _STEPS_BT + 1)

    def step() -> None:
        float(model.step(text_BT[:, :-1], text_BT[:, 1:], carry=False))
        model.synchronize()

    return step


def _peak_anew(cell: Cell, form: str) -> tuple[list[Measurement], float]:
    """Measure `_peak` of the layer in this form, in a process that has not tried another one."""
    return in_new_process(cell.framework, _peak_of_form, cell, form)


def _peak_of_form(cell: Cell, form: str) -> tuple[list[Measurement], float]:
    return _peak(cell, _layer(cell, replace(zipf_spec(cell), form=form)), zipf_batch(cell))


def compilation(seconds: Sequence[float]) -> float:
    """Return the seconds by which the first call exceeds the later ones, 0 if these differ by as much themselves."""
    first, *later = seconds
    excess = first - max(later)
    return excess if excess > max(later) - min(later) else 0.0


def _peak(cell: Cell, layer: Layer, inputs: Batch) -> tuple[list[Measurement], float]:
    """Measure the peak memory of the second call, and how many seconds longer the first call takes.

    The first call compiles. Later calls that, like it, take their memory from the system are its reference. A small
    layer of the same method runs before, so that whatever the framework loads in order to compile is in memory already.

    Returns:
        The measurement, if the memory can be counted, and the seconds of compilation.
    """
    spec = layers.spec(
        cell.method, counts=zipf_counts(_SMALL_VOCAB), dim=_SMALL_DIM, dtype=cell.precision, **cell.options
    )
    small = _layer(cell, replace(spec, form=layer.spec.form))
    some = batch(spec.counts, tokens=32, dim=_SMALL_DIM, seed=cell.seed)
    small.prepare("layer", some.hidden_ND, some.targets_N)()

    work = layer.prepare("layer", inputs.hidden_ND, inputs.targets_N)
    with freed_given_back():
        seconds = [call_seconds(work)]
        if cell.device != "cpu":
            # Prepared again, since a second call of the same work may be a graph, which already has its memory.
            work = layer.prepare("layer", inputs.hidden_ND, inputs.targets_N)
        value = peak_bytes(cell.framework, cell.device, work)
        while len(seconds) < 2 or (len(seconds) < 1 + _CALLS and sum(seconds[1:]) < _BUDGET):
            seconds.append(call_seconds(work))
    compiling = compilation(seconds)
    if value is None:
        return [], compiling
    return [Measurement("peak_bytes", value, [value], detail={"counting": DEFINITION})], compiling


# Frameworks keep freed memory, which would hide the peak of the next cell.
TASK = Task(SETTINGS, run, check=check_rounds, fresh_process=True, repeat=repeat)
