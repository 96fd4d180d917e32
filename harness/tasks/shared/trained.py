"""Speed of a trained output layer, interleaved with full softmax.

Training changes the speed: clusters become unequal in size, and the distributions peaked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers
from vocabench.harness.measure import agreement
from vocabench.harness.measure.fastest_form import fastest_form
from vocabench.harness.measure.new_process import in_new_process
from vocabench.harness.measure.score_fit import fit_full_softmax
from vocabench.harness.measure.timing import calls_in_flight
from vocabench.harness.measure.workload import Batch
from vocabench.harness.run import processes
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.tasks.shared.paired import BASELINE, DECODING, K, Pair
from vocabench.harness.tasks.shared.spec import baseline_of
from vocabench.impls.contract import Layer
from vocabench.impls.spec import Arrays, LayerSpec

_CHECKED = 48  # tokens on which the layer is compared with the oracle before it is timed


class TrainedLayer:
    """A layer with trained parameters, next to a full softmax.

    In decoding, full softmax has trained weights too: the same ones if it is the layer itself, otherwise weights that
    give the words the same scores, since exact search takes less time where few words score far above the others. Its
    training takes the same time with any weights.
    """

    def __init__(self, cell: Cell, spec: LayerSpec, params: Arrays) -> None:
        self.cell, self._spec, self._params = cell, spec, params
        self._plain = baseline_of(cell, spec)

    def training(self, inputs: Batch, progress: Callable[[str], None]) -> tuple[Measurement, dict[str, Any]]:
        """Time the forward and backward pass for `inputs` in the fastest form, which `decoding` then uses too.

        Returns:
            The measurement, and the agreement with the oracle as `agreement.summary` returns it.
        """
        cell = self.cell
        self._spec, times = fastest_form(cell.framework, self._spec, inputs, cell.device, progress)
        self._plain, _ = fastest_form(cell.framework, self._plain, inputs, cell.device, progress)
        progress("agreement of the trained layer")
        some = Batch(inputs.hidden_ND[:_CHECKED], inputs.targets_N[:_CHECKED])
        checked = agreement.check_layer(self.layer(), some, k=min(K, self._spec.vocab), whole_vocabulary=False)
        progress("trained_layer_seconds")
        (found,) = self._in_processes(_training, inputs)
        found.detail.update({"tokens": len(inputs.targets_N), "tried": times})
        if "cluster" in self._spec.structure:
            cluster_V = self._spec.structure["cluster"]
            size_C = np.bincount(cluster_V)
            found.detail["cluster_sizes"] = [int(size_C.min()), float(np.median(size_C)), int(size_C.max())]
            found.detail["clusters_met"] = len(np.unique(cluster_V[inputs.targets_N])) / len(size_C)
        return found, agreement.summary(checked)

    def decoding(self, hidden_ND: NDArray) -> list[Measurement]:
        """Time exact top-k, beam and sampling on hidden vectors of held-out text."""
        return self._in_processes(_decoding, hidden_ND)

    def layer(self) -> Layer:
        """Return the layer, in the fastest form that `training` found if it has run."""
        layer = layers.from_spec(self.cell.framework, self._spec, self.cell.device)
        layer.load(self._params)
        return layer

    def _in_processes(self, measure: Callable[..., list[Measurement]], inputs: Any) -> list[Measurement]:
        """Measure in as many processes as the cell wants; one is this process, several are new ones."""
        count = processes.wanted(self.cell)
        arguments = (self.cell, self._spec, self._plain, self._params, inputs)
        if count == 1:
            return measure(*arguments)
        found: list[Measurement] = []
        for _ in range(count):
            further = in_new_process(self.cell.framework, measure, *arguments)
            found = processes.join(self.cell, found, further) if found else further
        return found


def _training(cell: Cell, spec: LayerSpec, plain: LayerSpec, params: Arrays, inputs: Batch) -> list[Measurement]:
    pair = Pair(cell, spec, plain)
    pair.create()
    pair.layer.load(params)
    calls = calls_in_flight(cell.device)
    sides = [
        layer.prepare("layer", inputs.hidden_ND, inputs.targets_N, calls=calls) for layer in (pair.baseline, pair.layer)
    ]
    _, found = pair.timed("trained_layer_seconds", sides[:1], sides[1:], {}, calls)
    found.detail["formulation"] = pair.layer.formulation()  # complete after its first call
    return [found]


def _decoding(cell: Cell, spec: LayerSpec, plain: LayerSpec, params: Arrays, hidden_ND: NDArray) -> list[Measurement]:
    is_baseline = cell.method == BASELINE
    pair = Pair(cell, spec, spec if is_baseline else plain, weights="trained" if is_baseline else "fitted")
    pair.create()
    pair.layer.load(params)
    if is_baseline:
        pair.baseline.load(params)
    else:
        scores_NV = pair.layer.log_probs(hidden_ND)
        pair.baseline.load(fit_full_softmax(scores_NV, hidden_ND, bias=bool(plain.options["bias"])))
    return pair.decoding(hidden_ND, DECODING)
