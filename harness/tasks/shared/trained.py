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
from vocabench.harness.measure.timing import calls_in_flight
from vocabench.harness.measure.workload import Batch
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.tasks.shared.paired import BASELINE, K, decoding, timed
from vocabench.impls.contract import Layer
from vocabench.impls.spec import Arrays, LayerSpec

_CHECKED = 48  # tokens on which the layer is compared with the oracle before it is timed


class TrainedLayer:
    """A layer with trained parameters. Full softmax next to it is untrained."""

    def __init__(self, cell: Cell, spec: LayerSpec, params: Arrays) -> None:
        self.cell, self._spec, self._params = cell, spec, params
        self._plain = layers.spec(BASELINE, counts=spec.counts, dim=cell.dim, seed=cell.seed, dtype=cell.precision)

    def training(self, inputs: Batch, progress: Callable[[str], None]) -> tuple[Measurement, dict[str, Any]]:
        """Time the forward and backward pass for `inputs` in the fastest form, which `decoding` then uses too.

        Returns:
            The measurement, and the agreement with the oracle as `agreement.summary` returns it.
        """
        cell = self.cell
        self._spec, times = fastest_form(cell.framework, self._spec, inputs, cell.device, progress)
        self._plain, _ = fastest_form(cell.framework, self._plain, inputs, cell.device, progress)
        baseline, layer = self._layers()
        progress("agreement of the trained layer")
        some = Batch(inputs.hidden_ND[:_CHECKED], inputs.targets_N[:_CHECKED])
        checked = agreement.check_layer(layer, some, k=min(K, layer.spec.vocab), whole_vocabulary=False)
        progress("trained_layer_seconds")
        calls = calls_in_flight(cell.device)
        sides = [each.prepare("layer", inputs.hidden_ND, inputs.targets_N, calls=calls) for each in (baseline, layer)]
        detail: dict[str, Any] = {"tokens": len(inputs.targets_N), "tried": times}
        if "cluster" in self._spec.structure:
            cluster_V = self._spec.structure["cluster"]
            size_C = np.bincount(cluster_V)
            detail["cluster_sizes"] = [int(size_C.min()), float(np.median(size_C)), int(size_C.max())]
            detail["clusters_met"] = len(np.unique(cluster_V[inputs.targets_N])) / len(size_C)
        _, found = timed(cell, "trained_layer_seconds", sides[:1], sides[1:], detail, calls)
        found.detail["formulation"] = layer.formulation()  # complete after its first call
        return found, agreement.summary(checked)

    def decoding(self, hidden_ND: NDArray) -> list[Measurement]:
        """Time exact top-k, beam and sampling on hidden vectors of held-out text."""
        baseline, layer = self._layers()
        return decoding(self.cell, layer, baseline, hidden_ND)

    def layer(self) -> Layer:
        """Return the layer, in the fastest form that `training` found if it has run."""
        layer = layers.from_spec(self.cell.framework, self._spec, self.cell.device)
        layer.load(self._params)
        return layer

    def _layers(self) -> tuple[Layer, Layer]:
        return layers.from_spec(self.cell.framework, self._plain, self.cell.device), self.layer()
