"""A trained layer from a file, in every framework and by every method that computes its function: how it agrees with
the oracle, its perplexity on the file's hidden vectors, and its speed on them turn by turn with full softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vocabench.harness import layer_file
from vocabench.harness.layer_file import LayerFile
from vocabench.harness.measure.workload import Batch
from vocabench.harness.quantities import Measurement
from vocabench.harness.run.cells import Cell, Setting, differing
from vocabench.harness.tasks.shared.data import Progress, data_of
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.trained import TrainedLayer
from vocabench.impls.contract import Layer
from vocabench.impls.errors import BadInput
from vocabench.impls.options import Number

SETTINGS: dict[str, Setting] = {
    "decode_rows": Number(128, 0, 10**6, "the file's hidden vectors decoded at a time, the first ones; 0 decodes none"),
    "rounds": Number(11, 6, 1000, "interleaved rounds of timing"),
    "budget": Number(10.0, 0.0, 1e6, "seconds of it after which no round beyond the sixth starts"),
}

_PIECE = 256  # tokens scored at a time, so that a layer that scores all words needs no (N, V) array


def load(name: str, vocab: int | None, settings: Mapping[str, Any], progress: Progress) -> LayerFile:
    """The layer at this path.

    Raises:
        BadInput: As `layer_file.load`; its vocabulary is another, or it has fewer hidden vectors than are decoded.
    """
    file = layer_file.load(name)
    if vocab is not None and vocab != file.spec.vocab:
        raise BadInput(f"vocabulary of {vocab} for layer file {name}: allowed: its own, {file.spec.vocab}")
    if settings["decode_rows"] > len(file.targets_N):
        asked = f"decode_rows={settings['decode_rows']} for layer file {name}"
        raise BadInput(f"{asked}: allowed: at most its hidden vectors, {len(file.targets_N)}")
    return file


def fixed_by(file: LayerFile) -> dict[str, Any]:
    """What of a sweep the layer says: all but the framework, the device and the precision."""
    options = differing(file.spec.definition, file.spec.options)
    return {"methods": file.methods, "options": options, "dim": file.spec.dim, "tokens": len(file.targets_N)}


def run(cell: Cell, progress: Callable[[str], None]) -> Result:
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
