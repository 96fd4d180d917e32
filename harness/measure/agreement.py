"""Numerical agreement of a layer, or of a whole model's training, with the float64 oracle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers, registry
from vocabench.harness.measure.tolerances import FLIPS, samples_compare, tolerance
from vocabench.harness.measure.workload import Batch
from vocabench.impls.contract import Layer
from vocabench.impls.models.language_model import LanguageModelConfig
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import LayerSpec, storage

AGREE, DISAGREE = "agree", "disagree"

_AT_ONCE = 2**16  # numbers compared: temporary arrays as large as a gradient take ten times as long to fill


@dataclass(frozen=True)
class Comparison:
    """One quantity held against the oracle's.

    Attributes:
        quantity: What was compared, with the parameter's name where it is a gradient.
        absolute: Largest absolute difference.
        relative: The same over the oracle's largest entry; what the tolerance bounds.
        tolerance: From `harness/measure/tolerances.py`.
        case: The sizes and options it was computed at.
    """

    quantity: str
    absolute: float
    relative: float
    tolerance: float
    case: str

    @property
    def agrees(self) -> bool:
        return self.relative <= self.tolerance  # False for NaN too

    @property
    def error(self) -> float:
        """In units of the tolerance: above 1 is a disagreement."""
        return self.relative / self.tolerance

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "agrees": self.agrees}

    def __str__(self) -> str:
        verdict = "agrees" if self.agrees else "DISAGREES"
        return (
            f"{self.quantity} {verdict} at {self.case}: relative error {self.relative:.2e}, "
            f"absolute {self.absolute:.2e}, tolerance {self.tolerance:.2e}"
        )


def verdict(comparisons: list[Comparison]) -> str:
    return AGREE if comparisons and all(c.agrees for c in comparisons) else DISAGREE


def worst(comparisons: list[Comparison]) -> Comparison:
    """The comparison nearest to or furthest beyond its tolerance; one that is not a number comes first."""
    return max(comparisons, key=lambda c: np.inf if np.isnan(c.error) else c.error)


def compare(quantity: str, ours: Any, oracle: Any, bound: float, case: str) -> Comparison:
    ours, oracle = np.asarray(ours), np.asarray(oracle)
    if ours.shape != oracle.shape:
        return Comparison(f"{quantity} (shape {ours.shape} for {oracle.shape})", np.inf, np.inf, bound, case)
    ours, oracle = ours.reshape(-1), oracle.reshape(-1)
    largest = [(0.0, 0.0)]
    for start in range(0, len(ours), _AT_ONCE):
        piece, against = (array[start : start + _AT_ONCE].astype(np.float64) for array in (ours, oracle))
        largest.append((np.abs(piece - against).max(), np.abs(against).max()))
    absolute, scale = (float(value) for value in np.max(largest, axis=0))  # NaN if any is
    return Comparison(quantity, absolute, absolute / scale if scale else absolute, bound, case)


def check_layer(layer: Layer, batch: Batch, *, k: int, whole_vocabulary: bool = True) -> list[Comparison]:
    """Every quantity of `layer` against an oracle with the very same parameters, as the layer holds them.

    Both get the parameters and hidden vectors that the layer's precision can represent, so that what is compared is the
    arithmetic and not the rounding of the input.
    """
    spec = layer.spec
    oracle = registry.adapter("numpy").create_layer(dataclasses.replace(spec, dtype="float64"))
    oracle.load(layer.parameters())
    hidden_ND, targets_N = _representable(batch.hidden_ND, spec.dtype), batch.targets_N
    options = "".join(f" {name}={value}" for name, value in spec.options.items() if _differs(spec, name, value))
    case = f"V={spec.vocab} D={spec.dim} N={len(targets_N)}{options}"
    found: list[Comparison] = []

    def hold(quantity: str, ours: Any, theirs: Any, *, reduction: int, name: str | None = None) -> None:
        bound = tolerance(quantity, spec.dtype, reduction)
        found.append(compare(name or quantity, ours, theirs, bound, case))

    loss, dhidden_ND, grads = layer.loss_and_grads(hidden_ND, targets_N)
    oracle_loss, oracle_dhidden_ND, oracle_grads = oracle.loss_and_grads(hidden_ND, targets_N)
    hold("loss", loss, oracle_loss, reduction=spec.dim)
    hold("loss", layer.loss(hidden_ND, targets_N), oracle_loss, reduction=spec.dim, name="loss without gradients")
    target_log_probs_N = oracle.target_log_probs(hidden_ND, targets_N)
    hold("target_log_probs", layer.target_log_probs(hidden_ND, targets_N), target_log_probs_N, reduction=spec.dim)
    hold("grad_hidden", dhidden_ND, oracle_dhidden_ND, reduction=spec.dim)
    for name, grad in oracle_grads.items():
        ours = grads.get(name, np.zeros(0))
        hold("grad_parameter", ours, grad, reduction=max(spec.dim, len(targets_N)), name=f"gradient of {name}")

    oracle_log_probs_NV = oracle.log_probs(hidden_ND)
    values_NK, ids_NK = layer.topk(hidden_ND, k)
    oracle_values_NK, oracle_ids_NK = oracle.topk(hidden_ND, k)
    hold("topk_values", values_NK, oracle_values_NK, reduction=spec.dim)
    margin = tolerance("topk_values", spec.dtype, spec.dim) * float(np.abs(oracle_log_probs_NV).max())
    found.append(_compare_ids(ids_NK, oracle_ids_NK, oracle_log_probs_NV, margin, case))
    width = min(3 * k, spec.vocab)
    values_NK, ids_NK = layer.beam(hidden_ND, k, width)
    at_ids_NK = np.take_along_axis(oracle_log_probs_NV, np.asarray(ids_NK), 1)
    hold("beam_values", values_NK, at_ids_NK, reduction=spec.dim)
    flips = FLIPS[spec.dtype].value
    oracle_beam_NK = oracle.beam(hidden_ND, k, width)[0]
    # A prefix lost to rounding shows as another word of the beam; equal words in another order do not.
    other = float((np.abs(at_ids_NK - oracle_beam_NK).max(axis=1) > 2 * margin).mean())
    found.append(Comparison("beam_ids", other, other, flips, case))
    if samples_compare(spec.dtype, spec.vocab):
        uniforms_NU = np.random.default_rng([spec.seed, 5]).random((len(hidden_ND), spec.draws))
        drawn_N, oracle_drawn_N = (one.sample(hidden_ND, uniforms_NU) for one in (layer, oracle))
        other = float((drawn_N != oracle_drawn_N).mean())
        found.append(Comparison("sampled words", other, other, flips, case))
    if whole_vocabulary:
        log_probs_NV = layer.log_probs(hidden_ND)
        hold("log_probs", log_probs_NV, oracle_log_probs_NV, reduction=spec.dim)
        log_sum_N = np.logaddexp.reduce(np.asarray(log_probs_NV, dtype=np.float64), axis=1)
        bound = tolerance("normalisation", spec.dtype, spec.dim)
        absolute = float(np.abs(log_sum_N).max())
        # A log-probability is a difference of numbers of the logits' size, whose rounding it keeps.
        scale = float(np.abs(oracle_log_probs_NV).max())
        found.append(Comparison("probabilities sum to 1", absolute, absolute / scale, bound, case))
    return found


def check_ties(layer: Layer, batch: Batch, *, k: int) -> Comparison:
    """Ties of top-k go to the lower id: with every parameter zero, many words are equal to the bit."""
    kept = layer.parameters()
    zeros = {name: np.zeros_like(value) for name, value in kept.items()}
    layer.load(zeros)
    values_NK, ids_NK = layer.topk(batch.hidden_ND, k)
    layer.load(kept)
    tied = np.diff(values_NK, axis=1) == 0
    wrong = int((tied & (np.diff(ids_NK.astype(np.int64), axis=1) <= 0)).sum())
    rising = int((np.diff(values_NK, axis=1) > 0).sum())
    return Comparison(
        "topk_ids of ties", wrong + rising, wrong + rising, 0.5, f"V={layer.spec.vocab} all-zero parameters"
    )


def check_training(
    framework: str, layer_spec: LayerSpec, config: LanguageModelConfig, device: str, *, steps: int = 20
) -> Comparison:
    """Loss curves of the first `steps` optimizer steps of the language model, from the same parameters and batches.

    A self-organizing layer is re-organized half-way, so that moved word vectors and optimizer state are covered too.
    """
    oracle_spec = dataclasses.replace(layer_spec, dtype="float64")
    models = [
        layers.create_network(framework, layer_spec, config, device),
        layers.create_network("numpy", oracle_spec, config),
    ]
    models[0].load(models[1].initial_parameters())
    rng = np.random.default_rng([config.seed, 11])
    text_BT = rng.choice(layer_spec.vocab, p=layer_spec.counts / layer_spec.counts.sum(), size=(4, steps * 5 + 1))
    curves: list[list[float]] = [[], []]
    for model, curve in zip(models, curves, strict=True):
        for step in range(steps):
            if step == steps // 2:
                model.reorganize()
            start = step * 5
            inputs_BT, targets_BT = text_BT[:, start : start + 5], text_BT[:, start + 1 : start + 6]
            curve.append(float(model.step(inputs_BT.astype(np.int32), targets_BT.astype(np.int32), carry=step > 0)))
    quantity = "training_loss of maxima" if layer_spec.definition.takes_maxima else "training_loss"
    bound = tolerance(quantity, layer_spec.dtype, layer_spec.dim)
    case = f"{config.optimizer.name} V={layer_spec.vocab} D={layer_spec.dim} {steps} steps"
    return compare("training loss", curves[0], curves[1], bound, case)


def check_descent(layer: Layer, batch: Batch, optimizer: Optimizer, *, steps: int = 5) -> Comparison:
    """How far `steps` optimizer steps of the layer alone lower the loss of the batch that they are taken on.

    Of new text a tree that does not train at all has nearly the loss of one that does; of its own batch it has not.
    """
    spec, start = layer.spec, layer.parameters()
    oracle = registry.adapter("numpy").create_layer(dataclasses.replace(spec, dtype="float64"))
    oracle.load(start)
    hidden_ND, targets_N = _representable(batch.hidden_ND, spec.dtype), batch.targets_N

    def fall(trained: Layer) -> float:
        before = trained.loss(hidden_ND, targets_N)
        step = trained.prepare("layer_step", hidden_ND, targets_N, optimizer=optimizer)
        for _ in range(steps):
            step()
        return before - trained.loss(hidden_ND, targets_N)

    case = f"{optimizer.name} V={spec.vocab} D={spec.dim} N={len(targets_N)} {steps} steps"
    bound = tolerance("loss_fall", spec.dtype, steps)
    found = compare("fall of the loss", fall(layer), fall(oracle), bound, case)
    layer.load(start)
    return found


# By precision, so that each method meets each: settings under which rounding does not grow without bound (see
# tolerances.FACTORS["training_loss"]). bfloat16 is held by `check_descent` and has a step that its parameters can hold.
TRAINING_OPTIMIZERS: Mapping[str, Optimizer] = {
    "float32": Optimizer(name="adagrad"),
    "float64": Optimizer(name="adam", learning_rate=1e-3, epsilon=1e-8),
    "bfloat16": Optimizer(name="adam", learning_rate=1e-2, epsilon=1e-8),
}


def _compare_ids(
    ids_NK: NDArray, oracle_ids_NK: NDArray, log_probs_NV: NDArray, margin: float, case: str
) -> Comparison:
    """Ids may differ from the oracle's only where their exact log-probabilities are within rounding of each other."""
    ids_NK = np.asarray(ids_NK)
    if ids_NK.shape != oracle_ids_NK.shape or ids_NK.min() < 0 or ids_NK.max() >= log_probs_NV.shape[1]:
        return Comparison("topk_ids", np.inf, np.inf, 0.5, case)
    gap_NK = np.take_along_axis(log_probs_NV, oracle_ids_NK, 1) - np.take_along_axis(log_probs_NV, ids_NK, 1)
    repeated = sum(len(row) - len(np.unique(row)) for row in ids_NK)
    wrong = int((np.abs(gap_NK) > 2 * margin).sum()) + repeated
    return Comparison("topk_ids", wrong, wrong, 0.5, case)


def _representable(hidden_ND: NDArray, dtype: str) -> NDArray:
    """`hidden_ND` rounded to what `dtype` can hold, as float64 or float32."""
    if dtype == "bfloat16":
        bits = hidden_ND.astype(np.float32).view(np.uint32)
        return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)
    return hidden_ND.astype(storage(dtype))


def _differs(spec: LayerSpec, name: str, value: object) -> bool:
    return value != spec.definition.options[name].default


def summary(comparisons: list[Comparison]) -> dict[str, Any]:
    """What a row keeps: the verdict, the worst comparison, and each that disagrees."""
    at_worst = worst(comparisons)
    return {
        "verdict": verdict(comparisons),
        "worst": at_worst.to_json(),
        "error": at_worst.error,
        "compared": len(comparisons),
        "disagreements": [str(c) for c in comparisons if not c.agrees],
    }
