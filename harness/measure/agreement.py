"""Numerical agreement of a layer, or of the training of a whole model, with its float64 definition (the oracle)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers, registry
from vocabench.harness.measure.tolerances import FLIPS, samples_compare, tolerance
from vocabench.harness.measure.workload import Batch
from vocabench.impls.calls import PLAIN, Objective, has_z_loss
from vocabench.impls.contract import Layer
from vocabench.impls.models.language_model import LanguageModelConfig
from vocabench.impls.on_numpy.oracle import OracleLayer
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import Arrays, LayerSpec, storage

AGREE, DISAGREE = "agree", "disagree"

# Settings in which rounding errors do not grow without bound (see FACTORS["training_loss"] in tolerances.py). They
# differ by precision so that every method is checked with several. In bfloat16, `check_descent` checks the training,
# with a step size that the parameters can represent.
TRAINING_OPTIMIZERS: Mapping[str, Optimizer] = {
    "float32": Optimizer(name="adagrad"),
    "float64": Optimizer(name="adam", learning_rate=1e-3, epsilon=1e-8),
    "bfloat16": Optimizer(name="adam", learning_rate=1e-2, epsilon=1e-8),
}

_FEW_TOKENS = 16
_CHUNK = 2**16  # entries compared at a time: temporary arrays of a gradient's size take ten times as long to fill


@dataclass(frozen=True)
class Comparison:
    """One quantity compared with the oracle's.

    Attributes:
        quantity: What was compared, with the name of the parameter for a gradient.
        absolute: Largest absolute difference.
        relative: `absolute` divided by the oracle's largest entry; the tolerance bounds it.
        tolerance: Bound from `harness/measure/tolerances.py`.
        case: Sizes and options of the computation.
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
        """The error in units of the tolerance: above 1, the quantities disagree."""
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
    """Return `AGREE` if there are comparisons and all of them agree, otherwise `DISAGREE`."""
    return AGREE if comparisons and all(c.agrees for c in comparisons) else DISAGREE


def worst(comparisons: list[Comparison]) -> Comparison:
    """Return the comparison with the largest error in units of its tolerance. NaN counts as the largest."""
    return max(comparisons, key=lambda c: np.inf if np.isnan(c.error) else c.error)


def summary(comparisons: list[Comparison]) -> dict[str, Any]:
    """Return what a row stores: the verdict, the worst comparison, and all comparisons that disagree."""
    at_worst = worst(comparisons)
    return {
        "verdict": verdict(comparisons),
        "worst": at_worst.to_json(),
        "error": at_worst.error,
        "compared": len(comparisons),
        "disagreements": [str(c) for c in comparisons if not c.agrees],
    }


def compare(
    quantity: str,
    ours: Any,
    oracle: Any,
    bound: float,
    case: str,
    *,
    largest_term: float = 0.0,
    kinks: NDArray | None = None,
) -> Comparison:
    """Compare two arrays. Arrays of different shapes disagree.

    Args:
        bound: Largest relative error.
        largest_term: Magnitude of the largest known term of sums in the oracle's array. If terms cancel, the error is
            relative to it, because each term is rounded.
        kinks: Absolute errors that rounding may cause at kinks besides (`OracleLayer.kinks`).
    """
    ours, oracle = np.asarray(ours), np.asarray(oracle)
    if ours.shape != oracle.shape:
        return Comparison(f"{quantity} (shape {ours.shape} for {oracle.shape})", np.inf, np.inf, bound, case)
    ours, oracle = ours.reshape(-1), oracle.reshape(-1)
    largest = [(0.0, 0.0)]
    for start in range(0, len(ours), _CHUNK):
        ours_chunk, oracle_chunk = (array[start : start + _CHUNK].astype(np.float64) for array in (ours, oracle))
        largest.append((np.abs(ours_chunk - oracle_chunk).max(), np.abs(oracle_chunk).max()))
    absolute, scale = (float(value) for value in np.max(largest, axis=0))  # NaN if any entry is
    scale = max(scale, largest_term)
    if kinks is not None and scale:
        bound += float(kinks.max(initial=0.0)) / scale
    return Comparison(quantity, absolute, absolute / scale if scale else absolute, bound, case)


def check_layer(
    layer: Layer, batch: Batch, *, k: int, whole_vocabulary: bool = True, beam: bool = True
) -> list[Comparison]:
    """Compare every quantity of `layer` with an oracle that has the same parameters.

    Both get parameters and hidden vectors that the layer's precision can represent. So the comparison covers the
    arithmetic, and not the rounding of the inputs.

    Args:
        batch: Hidden vectors and targets.
        k: Number of words for top-k and beam search.
        whole_vocabulary: Whether to compare what depends on all words too: their log-probabilities, entropies, and
            losses with smoothed labels. Their definitions would take minutes in a layer of 44,000 words.
        beam: Whether to compare the beam search, which layers lack whose words are split over devices.
    """
    oracle = _oracle(layer)
    hidden_ND, targets_N = _representable(batch.hidden_ND, layer.spec.dtype), batch.targets_N
    check = _LayerCheck(layer, oracle, hidden_ND, _case(layer.spec, len(targets_N)))
    check.training(targets_N)
    check.topk(k)
    if beam:
        check.beam(k)
    check.sampling()
    if whole_vocabulary:
        check.objective(targets_N)
        check.probabilities()
    return check.comparisons


@dataclass
class _LayerCheck:
    """Comparisons of one layer with its oracle on the same hidden vectors."""

    layer: Layer
    oracle: OracleLayer
    hidden_ND: NDArray
    case: str
    comparisons: list[Comparison] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spec = self.layer.spec
        self.oracle_log_probs_NV = self.oracle.log_probs(self.hidden_ND)

    def add(self, quantity: str, ours: Any, oracle: Any, *, name: str = "") -> None:
        self.comparisons.append(self._compared(quantity, ours, oracle, name or quantity))

    def _compared(
        self, quantity: str, ours: Any, oracle: Any, name: str, *, reduction: int = 0, **allowances: Any
    ) -> Comparison:
        """Compare two arrays by the tolerance of a quantity; `allowances` are those of `compare`."""
        bound = tolerance(quantity, self.spec.dtype, reduction or self.spec.dim)
        return compare(name, ours, oracle, bound, self.case, **allowances)

    def add_flips(self, name: str, share: float) -> None:
        """Add the share of rows whose discrete choices differ."""
        self.comparisons.append(Comparison(name, share, share, FLIPS[self.spec.dtype].value, self.case))

    @property
    def margin(self) -> float:
        """The absolute rounding error that a log-probability may have."""
        bound = tolerance("topk_values", self.spec.dtype, self.spec.dim)
        return bound * float(np.abs(self.oracle_log_probs_NV).max())

    def training(self, targets_N: NDArray) -> None:
        """Compare losses, log-probabilities of the targets, and gradients."""
        layer, oracle, hidden_ND = self.layer, self.oracle, self.hidden_ND
        oracle_loss = self._loss_and_gradients(hidden_ND, targets_N)
        self.add("loss", layer.loss(hidden_ND, targets_N), oracle_loss, name="loss without gradients")
        oracle_target_log_probs_N = oracle.target_log_probs(hidden_ND, targets_N)
        self.add("target_log_probs", layer.target_log_probs(hidden_ND, targets_N), oracle_target_log_probs_N)

    def objective(self, targets_N: NDArray) -> None:
        """Compare a loss with token weights and all parts of an objective that the method defines, and entropies.

        The definition computes them token by token, so that this takes at most a few tokens.
        """
        definition, few = self.spec.definition, min(len(targets_N), _FEW_TOKENS)
        hidden_ND = self.hidden_ND[:few]
        options: dict[str, Any] = {} if definition.train_only_loss else {"label_smoothing": 0.1}
        if has_z_loss(definition):
            # Capped logits that are all but equal to the cap would have gradients of rounding errors alone.
            spread = float(np.ptp(self.oracle_log_probs_NV[:few]))
            options |= {"z_loss": 0.01, "softcap": max(5.0, spread)}
        weight_N = np.random.default_rng([self.spec.seed, 7]).random(few)
        names = ", ".join(["token_weight", *options])
        self._loss_and_gradients(hidden_ND, targets_N[:few], f" with {names}", token_weight=weight_N, **options)
        # The entropy of a peaked distribution is a rounding error itself: the error is relative to the largest entropy.
        largest = float(np.log(self.spec.vocab))
        ours_N, oracle_N = (side.entropy(hidden_ND) / largest for side in (self.layer, self.oracle))
        absolute = float(np.abs(ours_N - oracle_N).max())
        bound = tolerance("entropy", self.spec.dtype, self.spec.dim)
        self.comparisons.append(Comparison("entropy", absolute, absolute, bound, self.case))

    def _loss_and_gradients(self, hidden_ND: NDArray, targets_N: NDArray, which: str = "", **options: Any) -> float:
        """Compare a loss and its gradients, and return the oracle's loss."""
        loss, grad_hidden_ND, grads = self.layer.loss_and_grads(hidden_ND, targets_N, **options)
        oracle_loss, oracle_grad_hidden_ND, oracle_grads = self.oracle.loss_and_grads(hidden_ND, targets_N, **options)
        self.add("loss", loss, oracle_loss, name=f"loss{which}")
        kind = " of an objective" if options else ""
        terms = self._largest_terms(hidden_ND, targets_N, options) if options else {}
        hidden, reduction = "grad_hidden", max(self.spec.dim, len(targets_N))

        def compared(kinks: Mapping[str, NDArray]) -> list[Comparison]:
            of_hidden = self._compared(
                f"{hidden}{kind}", grad_hidden_ND, oracle_grad_hidden_ND, f"{hidden}{which}", kinks=kinks.get(hidden)
            )
            of_parameters = (
                self._compared(
                    f"grad_parameter{kind}",
                    grads.get(name, np.zeros(0)),
                    oracle_grad,
                    f"gradient of {name}{which}",
                    reduction=reduction,
                    largest_term=terms.get(name, 0.0),
                    kinks=kinks.get(name),
                )
                for name, oracle_grad in oracle_grads.items()
            )
            return [of_hidden, *of_parameters]

        found = compared({})
        if not all(c.agrees for c in found):  # perhaps because of kinks, whose bounds take as long as the gradients
            kinks_ND, kinks = self._kinks(hidden_ND, targets_N, **options)
            found = compared({hidden: kinks_ND, **kinks})
        self.comparisons += found
        return oracle_loss

    def _kinks(
        self, hidden_ND: NDArray, targets_N: NDArray, token_weight: NDArray | None = None, **options: Any
    ) -> tuple[NDArray, Arrays]:
        rounding = tolerance("kink", self.spec.dtype, self.spec.dim)
        objective = Objective(**options) if options else PLAIN
        return self.oracle.kinks(hidden_ND, targets_N, rounding, objective, token_weight)

    def _largest_terms(self, hidden_ND: NDArray, targets_N: NDArray, options: dict[str, Any]) -> dict[str, float]:
        """Return the largest entry that the token with the largest weight adds to the gradient of each parameter."""
        weight_N = options["token_weight"]
        token = int(weight_N.argmax())
        one, share = slice(token, token + 1), float(weight_N[token] / weight_N.sum())
        grads = self.oracle.loss_and_grads(hidden_ND[one], targets_N[one], **{**options, "token_weight": None})[2]
        return {name: share * float(np.abs(grad).max(initial=0.0)) for name, grad in grads.items()}

    def topk(self, k: int) -> None:
        values_NK, ids_NK = self.layer.topk(self.hidden_ND, k)
        oracle_values_NK, oracle_ids_NK = self.oracle.topk(self.hidden_ND, k)
        self.add("topk_values", values_NK, oracle_values_NK)
        self.comparisons.append(_compare_ids(ids_NK, oracle_ids_NK, self.oracle_log_probs_NV, self.margin, self.case))

    def beam(self, k: int) -> None:
        width = min(3 * k, self.spec.vocab)
        values_NK, ids_NK = self.layer.beam(self.hidden_ND, k, width)
        log_probs_NK = np.take_along_axis(self.oracle_log_probs_NV, np.asarray(ids_NK), 1)
        self.add("beam_values", values_NK, log_probs_NK)
        oracle_values_NK = self.oracle.beam(self.hidden_ND, k, width)[0]
        # A prefix lost to rounding shows as a word with another probability. Equal words in another order do not.
        differs_N = np.abs(log_probs_NK - oracle_values_NK).max(axis=1) > 2 * self.margin
        self.add_flips("beam_ids", float(differs_N.mean()))

    def sampling(self) -> None:
        """Compare words sampled from the same uniform numbers, where the precision determines them."""
        spec = self.spec
        if samples_compare(spec.dtype, spec.vocab):
            uniforms_NU = np.random.default_rng([spec.seed, 5]).random((len(self.hidden_ND), spec.draws))
            words_N, oracle_words_N = (side.sample(self.hidden_ND, uniforms_NU) for side in (self.layer, self.oracle))
            self.add_flips("sampled words", float((words_N != oracle_words_N).mean()))
            options = {"temperature": 0.8, "top_k": min(20, spec.vocab), "top_p": 0.9}
            words_N, oracle_words_N = (
                side.sample(self.hidden_ND, uniforms_NU, **options) for side in (self.layer, self.oracle)
            )
            self.add_flips("sampled words of the likeliest", float((words_N != oracle_words_N).mean()))

    def probabilities(self) -> None:
        """Compare the log-probabilities of all words, and check that the probabilities sum to 1."""
        log_probs_NV = self.layer.log_probs(self.hidden_ND)
        self.add("log_probs", log_probs_NV, self.oracle_log_probs_NV)
        log_sum_N = np.logaddexp.reduce(np.asarray(log_probs_NV, dtype=np.float64), axis=1)
        bound = tolerance("normalization", self.spec.dtype, self.spec.dim)
        absolute = float(np.abs(log_sum_N).max())
        # A log-probability is a difference of values of the logits' magnitude, and keeps their rounding errors.
        scale = float(np.abs(self.oracle_log_probs_NV).max())
        self.comparisons.append(Comparison("probabilities sum to 1", absolute, absolute / scale, bound, self.case))


def check_ties(layer: Layer, batch: Batch, *, k: int) -> Comparison:
    """Check that ties in top-k go to the lower id. With all parameters zero, many words are exactly equal."""
    params = layer.parameters()
    layer.load({name: np.zeros_like(value) for name, value in params.items()})
    values_NK, ids_NK = layer.topk(batch.hidden_ND, k)
    layer.load(params)
    tied = np.diff(values_NK, axis=1) == 0
    wrong = int((tied & (np.diff(ids_NK.astype(np.int64), axis=1) <= 0)).sum())
    rising = int((np.diff(values_NK, axis=1) > 0).sum())
    return Comparison(
        "topk_ids of ties", wrong + rising, wrong + rising, 0.5, f"V={layer.spec.vocab} all-zero parameters"
    )


def check_training(
    framework: str, layer_spec: LayerSpec, config: LanguageModelConfig, device: str, *, steps: int = 20
) -> Comparison:
    """Compare the losses of the first optimizer steps of the language model, from the same parameters and batches.

    A self-organizing layer is re-organized half-way, so that the check covers moved word vectors and optimizer state.
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
    """Compare how far optimizer steps of the layer alone lower the loss on the batch that they train on.

    The loss on new text would hardly differ between a tree that trains and one that does not.
    """
    spec, params = layer.spec, layer.parameters()
    oracle = _oracle(layer)
    hidden_ND, targets_N = _representable(batch.hidden_ND, spec.dtype), batch.targets_N

    def fall(trained: Layer) -> float:
        before = trained.loss(hidden_ND, targets_N)
        step = trained.prepare("layer_step", hidden_ND, targets_N, optimizer=optimizer)
        for _ in range(steps):
            step()
        return before - trained.loss(hidden_ND, targets_N)

    case = f"{optimizer.name} V={spec.vocab} D={spec.dim} N={len(targets_N)} {steps} steps"
    bound = tolerance("loss_fall", spec.dtype, steps)
    comparison = compare("fall of the loss", fall(layer), fall(oracle), bound, case)
    layer.load(params)
    return comparison


def _oracle(layer: Layer) -> OracleLayer:
    """Return the float64 definition with the layer's parameters, as the layer holds them."""
    oracle = registry.adapter("numpy").create_layer(dataclasses.replace(layer.spec, dtype="float64"))
    assert isinstance(oracle, OracleLayer)
    oracle.load(layer.parameters())
    return oracle


def _case(spec: LayerSpec, tokens: int) -> str:
    defaults = {name: option.default for name, option in spec.definition.options.items()}
    options = "".join(f" {name}={value}" for name, value in spec.options.items() if value != defaults[name])
    return f"V={spec.vocab} D={spec.dim} N={tokens}{options}"


def _compare_ids(
    ids_NK: NDArray, oracle_ids_NK: NDArray, log_probs_NV: NDArray, margin: float, case: str
) -> Comparison:
    """Count ids that differ from the oracle's although their exact log-probabilities are not within rounding."""
    ids_NK = np.asarray(ids_NK)
    if ids_NK.shape != oracle_ids_NK.shape or ids_NK.min() < 0 or ids_NK.max() >= log_probs_NV.shape[1]:
        return Comparison("topk_ids", np.inf, np.inf, 0.5, case)
    gap_NK = np.take_along_axis(log_probs_NV, oracle_ids_NK, 1) - np.take_along_axis(log_probs_NV, ids_NK, 1)
    repeated = sum(len(row) - len(np.unique(row)) for row in ids_NK)
    wrong = int((np.abs(gap_NK) > 2 * margin).sum()) + repeated
    return Comparison("topk_ids", wrong, wrong, 0.5, case)


def _representable(hidden_ND: NDArray, dtype: str) -> NDArray:
    """Return `hidden_ND` rounded to what `dtype` can represent, as float64 or float32."""
    if dtype == "bfloat16":
        bits = hidden_ND.astype(np.float32).view(np.uint32)
        return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)
    return hidden_ND.astype(storage(dtype))
