"""A trained layer from a file, in every framework and by every method that computes its function.

Measures its agreement with the oracle, its perplexity on the hidden vectors of the file, and its speed on them,
interleaved with full softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vocabench.harness import layer_file
from vocabench.harness.layer_file import LayerFile
from vocabench.harness.measure.workload import Batch
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.run.settings import Setting, differing
from vocabench.harness.tasks.shared.data import Progress, data_of
from vocabench.harness.tasks.shared.paired import check_rounds, timing_settings
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.task import Task
from vocabench.harness.tasks.shared.trained import TrainedLayer
from vocabench.impls.contract import Layer
from vocabench.impls.errors import BadInput
from vocabench.impls.options import Number

SETTINGS: dict[str, Setting] = {
    "decode_rows": Number(128, 0, 10**6, "hidden vectors of the file decoded as one batch; 0 for no decoding"),
    **timing_settings(processes=3, rounds=4, budget=4.0),
}

_PIECE = 256  # tokens per batch in scoring, so that a layer that scores all words needs no large array


def load(name: str, vocab: int | None, settings: Mapping[str, Any], progress: Progress) -> LayerFile:
    """Load the layer at this path.

    Raises:
        BadInput: As in `layer_file.load`, or the vocabulary differs, or there are fewer hidden vectors than rows to
            decode.
    """
    file = layer_file.load(name)
    if vocab is not None and vocab != file.spec.vocab:
        raise BadInput(f"vocabulary of {vocab} for layer file {name}: allowed: its own, {file.spec.vocab}")
    if settings["decode_rows"] > len(file.targets_N):
        asked = f"decode_rows={settings['decode_rows']} for layer file {name}"
        raise BadInput(f"{asked}: allowed: at most its hidden vectors, {len(file.targets_N)}")
    return file


def fixed_by(file: LayerFile) -> dict[str, Any]:
    """Return what the layer decides about a sweep: everything except framework, device and precision."""
    options = differing(file.spec.definition, file.spec.options)
    return {"methods": file.methods, "options": options, "dim": file.spec.dim, "tokens": len(file.targets_N)}


def run(cell: Cell, progress: Callable[[str], None]) -> Result:
    check_rounds(cell.settings)
    file, data = data_of(cell, load, progress)
    inputs = Batch(file.hidden_ND, file.targets_N)
    trained = TrainedLayer(cell, file.spec_of(cell.method, cell.precision), file.params)
    training, checked = trained.training(inputs, progress)
    measurements = [_perplexity(trained.layer(), inputs), training]
    if rows := cell.settings["decode_rows"]:
        progress("decoding")
        measurements += trained.decoding(inputs.hidden_ND[:rows])
    return Result(measurements, checked, data)


def _perplexity(layer: Layer, inputs: Batch) -> Measurement:
    pieces = range(_PIECE, len(inputs.targets_N), _PIECE)
    scored = zip(np.split(inputs.hidden_ND, pieces), np.split(inputs.targets_N, pieces), strict=True)
    nll = -sum(float(layer.target_log_probs(*piece).astype(np.float64).sum()) for piece in scored)
    tokens = len(inputs.targets_N)
    return Measurement("perplexity", float(np.exp(nll / tokens)), detail={"tokens": tokens})


TASK = Task(SETTINGS, run, load, fixed_by, check=check_rounds)
