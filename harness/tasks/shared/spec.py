"""The output layer of a model that a task trains."""

from __future__ import annotations

import math
from collections.abc import Mapping

from numpy.typing import NDArray

from vocabench.harness import layers
from vocabench.harness.measure.fastest_form import fastest_form
from vocabench.harness.measure.workload import Batch, batch, zipf_counts
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.tasks.shared.paired import BASELINE
from vocabench.impls.spec import LayerSpec


def zipf_spec(cell: Cell) -> LayerSpec:
    """Return the layer of the cell's method at its sizes, for words with Zipf's frequencies."""
    return layers.spec(
        cell.method,
        counts=zipf_counts(cell.vocab),
        dim=cell.dim,
        seed=cell.seed,
        dtype=cell.precision,
        **cell.options,
    )


def baseline_of(cell: Cell, spec: LayerSpec) -> LayerSpec:
    """Return the full softmax that the layer of `spec` is timed next to.

    Next to a softmax it has biases if that has, since both should compute the same function in the time that is
    compared. Next to another layer it has them if the setting `baseline_bias` says so.
    """
    is_softmax = spec.definition.one_softmax and "bias" in spec.options
    return layers.spec(
        BASELINE,
        counts=spec.counts,
        dim=cell.dim,
        seed=cell.seed,
        dtype=cell.precision,
        bias=spec.options["bias"] if is_softmax else cell.settings["baseline_bias"],
    )


def zipf_batch(cell: Cell) -> Batch:
    """Return random hidden vectors, and targets with Zipf's frequencies."""
    return batch(zipf_counts(cell.vocab), tokens=cell.tokens, dim=cell.dim, seed=cell.seed)


def parameters(spec: LayerSpec) -> Measurement:
    """Return the number of parameters of the layer, for its row."""
    return Measurement("parameters", sum(math.prod(shape) for shape in spec.parameter_shapes().values()))


def spec_of(cell: Cell, counts_V: NDArray, options: Mapping[str, object]) -> LayerSpec:
    """Return the layer of the cell's method, in the form that is fastest for a batch of the cell's tokens.

    On a CPU this is the preferred form of the framework, which was the fastest one measured or close to it. Compiling
    every form would cost a short training run more than the fastest form could save.
    """
    spec = layers.spec(
        cell.method, counts=counts_V, dim=cell.dim, vocab=None, seed=cell.seed, dtype=cell.precision, **options
    )
    if cell.device == "cpu":
        return spec
    inputs = batch(spec.counts, tokens=cell.tokens, dim=cell.dim, seed=cell.seed)
    return fastest_form(cell.framework, spec, inputs, cell.device, lambda text: None)[0]
