"""Timing of layers whose words are split over several devices, interleaved with full softmax over the same devices.

A time is that of the slowest device. Peak memory and number of parameters are the largest of any device.
"""

from __future__ import annotations

import gc
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import psutil

from vocabench.harness import registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.layout import Layout
from vocabench.harness.measure.lockstep import Lockstep, Report, in_processes
from vocabench.harness.measure.machine_load import LoadMeter
from vocabench.harness.measure.memory import DEFINITION, peak_bytes
from vocabench.harness.measure.timing import calls_in_flight
from vocabench.harness.measure.workload import Batch
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.run.settings import Names, Setting
from vocabench.harness.tasks.shared import feasible
from vocabench.harness.tasks.shared.paired import ON_REQUEST, K, Pair, check_rounds, timing_settings
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.spec import baseline_of, parameters, zipf_batch, zipf_spec
from vocabench.harness.tasks.shared.task import Task
from vocabench.harness.tasks.timing import SETTINGS as TIMING_SETTINGS
from vocabench.impls.adapter import Part
from vocabench.impls.contract import Layer
from vocabench.impls.errors import Unsupported
from vocabench.impls.forms import CPU
from vocabench.impls.options import Number
from vocabench.impls.spec import LayerSpec

_MOST_DEVICES = 1024
_DEFAULT = ("layer_seconds", "topk_seconds", "sample_seconds", "peak_bytes")

SETTINGS: dict[str, Setting] = {
    "devices": Number(2, 2, _MOST_DEVICES, "devices over which words are split"),
    "quantities": Names(_DEFAULT, (*_DEFAULT, *ON_REQUEST), "what to measure"),
    **timing_settings(processes=3, rounds=4, budget=10.0),
    **{name: TIMING_SETTINGS[name] for name in ("decode_rows", "checked_tokens")},
    **feasible.SETTINGS,
}


def run(cell: Cell, progress: Report) -> Result:
    check_rounds(cell.settings)
    environments = _environments(cell)
    spec = _spec(cell)
    plain = baseline_of(cell, spec)
    feasible.check_feasible(cell, spec, plain, progress, processes=len(environments))
    return in_processes(cell.framework, environments, _measured, cell, progress=progress)


def repeat(cell: Cell, first: Sequence[Measurement], progress: Report) -> list[Measurement]:
    """Measure the times of a cell once more."""
    return in_processes(cell.framework, _environments(cell), _timed, cell, progress=progress)


def _environments(cell: Cell) -> list[dict[str, str]]:
    """Return the environment variables of each process.

    Raises:
        Unsupported: The framework or the method has no such layer, or the machine has too few devices.
    """
    devices = cell.settings["devices"]
    parallel, allowed = registry.adapter(cell.framework).parallel(), []
    if parallel is not None:
        allowed = [method for method in parallel.methods() if method in registry.methods(cell.framework)]
    if parallel is None or cell.method not in allowed:
        raise Unsupported(
            f"{cell.method} in {cell.framework} with its words over {devices} devices: "
            f"allowed: {', '.join(allowed) or 'another framework'}"
        )
    if cell.device != CPU:
        here = sum(name != CPU for name in registry.adapter(cell.framework).devices())
        if ":" in cell.device or here < devices:
            raise Unsupported(f"{devices} devices of {cell.device}: allowed: cuda, and the {here} that are here")
    return parallel.environments(devices, cell.device)


def _spec(cell: Cell) -> LayerSpec:
    """Return the layer to split. Clusters stay in place: timing never re-organizes them."""
    spec = zipf_spec(cell)
    return replace(spec, options={**spec.options, "interval": 0}) if "interval" in spec.options else spec


def _measured(rank: int, folder: str, progress: Report, cell: Cell) -> Result:
    """Measure everything, in one of the processes that hold devices."""
    part, inputs = _joined(cell, rank, folder), zipf_batch(cell)
    spec = _spec(cell)
    layer = part.create_layer(spec)
    held = Measurement("device_parameters", part.highest(part.parameters_of_device(layer)))
    found = [parameters(spec), held]
    if "peak_bytes" in cell.settings["quantities"]:
        progress("peak memory")
        found += _peak(cell, part, layer, inputs)
    progress("agreement at this size")
    checked = cell.settings["checked_tokens"]
    sample = Batch(inputs.hidden_ND[:checked], inputs.targets_N[:checked])
    checks = agreement.check_layer(layer, sample, k=min(K, cell.vocab), whole_vocabulary=False, beam=False)
    del layer
    gc.collect()
    times = _times(cell, part, inputs, progress)
    part.leave()
    return Result([*times, *found], agreement.summary(checks))


def _timed(rank: int, folder: str, progress: Report, cell: Cell) -> list[Measurement]:
    part = _joined(cell, rank, folder)
    times = _times(cell, part, zipf_batch(cell), progress)
    part.leave()
    return times


def _joined(cell: Cell, rank: int, folder: str) -> Part:
    parallel = registry.adapter(cell.framework).parallel()
    assert parallel is not None
    return parallel.join(cell.settings["devices"], cell.device, rank, folder)


def _times(cell: Cell, part: Part, inputs: Batch, progress: Report) -> list[Measurement]:
    """Time all quantities that the cell wants."""
    wanted = cell.settings["quantities"]
    own = os.getpid()
    colleagues = [process for process in psutil.Process(os.getppid()).children() if process.pid != own]
    spec = _spec(cell)
    pair = Pair(
        cell,
        spec,
        baseline_of(cell, spec),
        layout=Layout(lambda below: int(part.highest(secrets.randbelow(below)))),
        make=lambda framework, spec, device: part.create_layer(spec),
        clock=lambda: Lockstep(part.highest),
        meter=partial(LoadMeter, colleagues),
    )
    pair.create()
    found: list[Measurement] = []
    if "layer_seconds" in wanted:
        progress("layer_seconds")
        calls = calls_in_flight(cell.device)
        sides = pair.baseline, pair.layer
        works = [layer.prepare("layer", inputs.hidden_ND, inputs.targets_N, calls=calls) for layer in sides]
        _, measurement = pair.timed("layer_seconds", works[:1], works[1:], {}, calls)
        measurement.detail["formulation"] = pair.layer.formulation()  # complete after its first call
        found.append(measurement)
        del sides, works
    progress("decoding")
    rows = cell.settings["decode_rows"]
    hidden_ND, targets_N = np.resize(inputs.hidden_ND, (rows, cell.dim)), np.resize(inputs.targets_N, rows)
    found += pair.decoding(hidden_ND, wanted, targets_N)
    pair.delete()
    return found


def _peak(cell: Cell, part: Part, layer: Layer, inputs: Batch) -> list[Measurement]:
    """Measure the peak memory of the second call on each device, of which the first one compiles."""
    work = layer.prepare("layer", inputs.hidden_ND, inputs.targets_N)
    work()
    peak = peak_bytes(cell.framework, cell.device, work)
    if peak is None:
        return []
    return [Measurement("peak_bytes", part.highest(peak), detail={"counting": DEFINITION})]


TASK = Task(SETTINGS, run, check=check_rounds, fresh_process=True, repeat=repeat)
