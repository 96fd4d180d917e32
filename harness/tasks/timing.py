"""Timing: one method of one framework at one vocabulary size, turn by turn with full softmax of the same framework."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement, roofline
from vocabench.harness.measure.fastest_form import fastest_form
from vocabench.harness.measure.memory import DEFINITION, freed_given_back, keep_freed, peak_bytes
from vocabench.harness.measure.timing import Work, call_seconds, calls_in_flight
from vocabench.harness.measure.workload import Batch, batch, zipf_counts
from vocabench.harness.quantities import Measurement
from vocabench.harness.run.cells import Cell, Names, Setting
from vocabench.harness.tasks.shared.paired import BASELINE, DECODING, decoding, timed
from vocabench.harness.tasks.shared.result import Result
from vocabench.impls.contract import Layer
from vocabench.impls.models.language_model import LanguageModelConfig
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.options import Number
from vocabench.impls.spec import LayerSpec

FRESH_PROCESS = True  # frameworks keep memory that they have freed, which would hide the next cell's peak

# Of the layer alone: the work, and the optimizer that it takes, Adagrad as in the SOHSM paper without the clipping that
# would need the whole model's norm. Weight decay would make every row move at every step.
_OPTIMIZER = Optimizer(clip_norm=0.0)
_WORK = {
    "layer_seconds": ("layer", _OPTIMIZER),
    "layer_step_seconds": ("layer_step", _OPTIMIZER),
    "row_sparse_step_seconds": ("layer_step", replace(_OPTIMIZER, weight_decay=0.0, row_sparse=True)),
}

SETTINGS: dict[str, Setting] = {
    "quantities": Names(
        (*_WORK, "step_seconds", *DECODING, "peak_bytes"),
        (*_WORK, "step_seconds", *DECODING, "peak_bytes"),
        "what to time",
    ),
    "rounds": Number(21, 6, 1000, "interleaved rounds; six are the fewest with a 95 % interval, a gate wants 21"),
    "budget": Number(30.0, 0.0, 1e6, "seconds a quantity after which no round beyond the sixth starts"),
    "decode_rows": Number(128, 1, 10**6, "hidden vectors decoded at a time"),
    "checked_tokens": Number(48, 1, 10**6, "tokens on which the layer is checked at this size before it is timed"),
}

_CALLS, _BUDGET = 3, 10.0  # after the first, which compiles; seconds after which there is no further one
_SMALL_VOCAB, _SMALL_DIM = 512, 16  # which every form takes
_STEPS_BT = 20  # time steps of the whole model's batch


def run(cell: Cell, progress: Callable[[str], None]) -> Result:
    inputs = batch(zipf_counts(cell.vocab), tokens=cell.tokens, dim=cell.dim, seed=cell.seed)
    wanted = cell.settings["quantities"]
    spec, layer, tried = _spec(cell, cell.method), None, {}
    measurements: list[Measurement] = []
    compiling = None  # seconds of it in the very first call
    if "peak_bytes" in wanted:
        # Before forms are tried: what a process has freed hides the next peak, and what it has compiled takes no time.
        layer = _layer(cell, spec)
        progress("peak memory")
        measurements, compiling = _peak(cell, layer, inputs)
    spec, times = fastest_form(cell.framework, spec, inputs, cell.device, progress)
    if times:
        tried = {"tried": times}
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

    plain = spec
    if cell.method != BASELINE:
        plain, _ = fastest_form(cell.framework, _spec(cell, BASELINE), inputs, cell.device, progress)
    baseline = _layer(cell, plain)  # a second one where the method is full softmax itself: an A/A comparison
    formulation, least = layer.formulation(), layer.least_work(inputs.targets_N)
    rates, calls = None, calls_in_flight(cell.device)
    if "layer_seconds" in wanted and least is not None:
        rates = _ceilings(cell, progress)
    for quantity in wanted:
        if quantity in _WORK and (layer.reaches_few_rows() or not _WORK[quantity][1].row_sparse):
            progress(quantity)
            pair = _work(baseline, quantity, inputs, calls), _work(layer, quantity, inputs, calls)
            found = _timed(cell, quantity, *pair, dict(tried), compiling, calls)
            found[0].detail["formulation"] = layer.formulation()  # which its first call completes
            measurements += found
            del pair
            gc.collect()
    if set(DECODING) & set(wanted):
        progress("decoding")
        # The steps timed above moved them, as many as the machine had time for.
        layer.load(spec.initial_parameters())
        hidden_ND = np.resize(inputs.hidden_ND, (cell.settings["decode_rows"], cell.dim))
        measurements += decoding(cell, layer, baseline, hidden_ND, wanted)
    del layer, baseline
    gc.collect()
    if "step_seconds" in wanted:
        progress("step_seconds")
        measurements += _timed(
            cell, "step_seconds", _model_step(cell, plain), _model_step(cell, spec), {"formulation": formulation}
        )
    if rates is not None and least is not None:
        timed_layer = next(m for m in measurements if m.quantity == "layer_seconds")
        measurements += roofline.measurements(timed_layer, least, rates.joined(_ceilings(cell, progress)))
    return Result(measurements, summary)


def _ceilings(cell: Cell, progress: Callable[[str], None]) -> roofline.Ceilings:
    progress("ceilings of this machine")
    return roofline.ceilings(cell.framework, cell.device, cell.precision)


def _spec(cell: Cell, method: str) -> LayerSpec:
    options = cell.options if method == cell.method else {}
    return layers.spec(
        method, counts=zipf_counts(cell.vocab), dim=cell.dim, seed=cell.seed, dtype=cell.precision, **options
    )


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


def _timed(
    cell: Cell,
    quantity: str,
    baseline: Work,
    other: Work,
    detail: dict[str, Any],
    compiling: float | None = None,
    calls: int = 1,
) -> list[Measurement]:
    result, measurement = timed(cell, quantity, [baseline], [other], detail, calls)
    found = [measurement]
    if quantity == "layer_seconds":
        if compiling is None:
            compiling = max(0.0, result.other.first_call - calls * result.other.seconds.value)
        found.append(Measurement("compile_seconds", compiling, [compiling]))
        if cell.method == BASELINE:
            half_width = (result.ratio.high - result.ratio.low) / 2
            found.append(Measurement("noise_floor", half_width, result.ratios))
    return found


def _peak_anew(cell: Cell, form: str) -> tuple[list[Measurement], float]:
    """`_peak` of the layer in that form, in a process that has tried no other."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_peak_of_form, cell.to_json(), form).result()


def _peak_of_form(fields: dict[str, Any], form: str) -> tuple[list[Measurement], float]:
    keep_freed()  # as the process that it was started from, or its gaps would be left
    cell = Cell.from_json(fields)
    registry.adapter(cell.framework).prepare_process()
    inputs = batch(zipf_counts(cell.vocab), tokens=cell.tokens, dim=cell.dim, seed=cell.seed)
    return _peak(cell, _layer(cell, replace(_spec(cell, cell.method), form=form)), inputs)


def _peak(cell: Cell, layer: Layer, inputs: Batch) -> tuple[list[Measurement], float]:
    """Of the second call, as the first compiles; none where nothing counts it. Also the seconds that the first takes
    longer than each of some later ones which, like it, take their memory from the system.

    A small layer of the same method goes first, so that what the framework loads and compiles with is in memory
    already.
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
            # Anew: a second call of the same may be a graph's, which has its memory already.
            work = layer.prepare("layer", inputs.hidden_ND, inputs.targets_N)
        value = peak_bytes(cell.framework, cell.device, work)
        while len(seconds) < 2 or (len(seconds) < 1 + _CALLS and sum(seconds[1:]) < _BUDGET):
            seconds.append(call_seconds(work))
    compiling = max(0.0, seconds[0] - max(seconds[1:]))
    if value is None:
        return [], compiling
    return [Measurement("peak_bytes", value, [value], detail={"counting": DEFINITION})], compiling
