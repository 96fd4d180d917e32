"""The stable contract of a layer in any framework, with NumPy arrays in and out.

The public methods check their input here, once. Each framework implements the underscored methods. Shape letters are
those of `impls/spec.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.impls.arrays import array_of, is_floating
from vocabench.impls.calls import (
    ALL_WORDS,
    PLAIN,
    Objective,
    Sampling,
    check_count,
    check_levels,
    check_sampling,
    check_softcap,
    objective_of,
)
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.precision import Precise
from vocabench.impls.spec import Arrays, LayerSpec, LeastWork, check_ids, check_words

_OBJECTIVE = (*Objective._fields, "token_weight")
WORK = ("layer", "layer_step", "score", "entropy", "topk", "beam", "sample", "nucleus_sample", "log_probs")
_OF_TARGETS = ("layer", "layer_step", "score")  # the work that needs them


@dataclass(frozen=True)
class Job:
    """The checked arguments of a prepared function.

    Attributes:
        work: One of `WORK`.
        hidden_ND, targets_N: The inputs.
        k: Number of words for "topk" and "beam".
        width: Width of the search for "beam".
        uniforms_NU: Uniform numbers for "sample" and "nucleus_sample".
        optimizer: Optimizer for "layer_step".
        extra: Random inputs of the loss for "layer" and "layer_step".
    """

    work: str
    hidden_ND: NDArray
    targets_N: NDArray[np.int64]
    k: int
    width: int
    uniforms_NU: NDArray[np.float64]
    optimizer: Optimizer
    extra: Arrays


class Layer(Precise, ABC):
    """An output layer, which maps a hidden vector (D,) to a distribution over V words."""

    def __init__(self, spec: LayerSpec) -> None:
        self.spec = spec

    # Implemented by each framework. `hidden` is (N, D) and finite, `targets` are (N,) int64 in the vocabulary, and the
    # keys of `extra` are those of `Definition.extra`: word ids are int64, numbers for each word are float64. Token
    # weights are (N,) float64.
    @abstractmethod
    def parameters(self) -> Arrays:
        """Return the parameters by canonical name, with words in vocabulary order."""

    @abstractmethod
    def _load(self, params: Arrays) -> None: ...

    @abstractmethod
    def _loss(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
        **extra: NDArray,
    ) -> float: ...

    @abstractmethod
    def _loss_and_grads(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
        **extra: NDArray,
    ) -> tuple[float, NDArray, Arrays]: ...

    @abstractmethod
    def _log_probs(self, hidden_ND: NDArray, softcap: float | None = None) -> NDArray: ...

    @abstractmethod
    def _entropy(self, hidden_ND: NDArray) -> NDArray: ...

    @abstractmethod
    def _target_log_probs(self, hidden_ND: NDArray, targets_N: NDArray) -> NDArray: ...

    @abstractmethod
    def _topk(self, hidden_ND: NDArray, k: int) -> tuple[NDArray, NDArray]: ...

    @abstractmethod
    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]: ...

    def _path_beam(self, hidden_ND: NDArray, k: int, width: int, levels: int) -> tuple[NDArray, NDArray]:
        return self._beam(hidden_ND, k, width)

    @abstractmethod
    def _sample(self, hidden_ND: NDArray, uniforms_NU: NDArray, sampling: Sampling = ALL_WORDS) -> NDArray: ...

    @abstractmethod
    def _prepare(self, job: Job) -> Callable[[], object]:
        """Return a function that starts the work on the device once and returns its result."""

    def _wait(self, made: object) -> None:
        """Wait until the device has computed the result. Nothing to do if calls are synchronous."""

    def structure(self) -> Arrays:
        """Return the arrays that define the structure, such as the cluster of each word; empty for full softmax."""
        return dict(self.spec.structure)

    def _expanded_share(self, hidden_ND: NDArray, k: int) -> NDArray:
        return np.ones(len(hidden_ND))

    def reaches_few_rows(self) -> bool:
        """Return whether a batch reaches few rows of a parameter, so that `Optimizer.row_sparse` saves work."""
        return False

    def formulation(self) -> str:
        """Return a description of the form that runs, if there are several; it is stored in the row."""
        return ""

    # Used by callers.
    def load(self, params: Mapping[str, ArrayLike]) -> None:
        """Load parameters in canonical form.

        Raises:
            BadInput: A parameter is missing, extra, misshapen or not finite.
        """
        self._load(self.spec.check_parameters(params))

    def loss(
        self,
        hidden: ArrayLike,
        targets: ArrayLike,
        *,
        label_smoothing: float = 0.0,
        token_weight: ArrayLike | None = None,
        z_loss: float = 0.0,
        softcap: float | None = None,
        **extra: ArrayLike,
    ) -> float:
        """Return the mean training loss in nats per token.

        Args:
            hidden: (N, D).
            targets: (N,).
            label_smoothing, z_loss, softcap: As defined by `calls.Objective`.
            token_weight: (N,) weights from 0 of the losses. The mean is divided by their sum, and is 0 if that is 0.
            **extra: Random inputs of the loss, with the names of `Definition.extra`: `sampled_ids` (S,), the sampled
                words of the batch, or (N, S) with `sharing="token"`, and `correction` (V,), which is subtracted from
                the score of each word if the words are drawn from another distribution than the options define. By
                default the ids are drawn from the seed of the layer, the same in every framework, with the correction
                of the layer's own sampler.
        """
        arguments = self._check_loss(hidden, targets, label_smoothing, token_weight, z_loss, softcap)
        return self._loss(*arguments, **self._check_extra(extra, len(arguments[1]), _OBJECTIVE))

    def loss_and_grads(
        self,
        hidden: ArrayLike,
        targets: ArrayLike,
        *,
        label_smoothing: float = 0.0,
        token_weight: ArrayLike | None = None,
        z_loss: float = 0.0,
        softcap: float | None = None,
        **extra: ArrayLike,
    ) -> tuple[float, NDArray, Arrays]:
        """Return the loss and its gradients with respect to `hidden` (N, D) and each parameter in canonical form.

        The arguments are those of `loss`.
        """
        arguments = self._check_loss(hidden, targets, label_smoothing, token_weight, z_loss, softcap)
        return self._loss_and_grads(*arguments, **self._check_extra(extra, len(arguments[1]), _OBJECTIVE))

    def log_probs(self, hidden: ArrayLike, *, softcap: float | None = None) -> NDArray:
        """Return the (N, V) natural logarithms of the normalized probabilities."""
        return self._log_probs(check_hidden(hidden, self.spec), check_softcap(self.spec.definition, softcap))

    def entropy(self, hidden: ArrayLike) -> NDArray:
        """Return the (N,) entropies of the distributions over words, in nats."""
        return self._entropy(check_hidden(hidden, self.spec))

    def target_log_probs(self, hidden: ArrayLike, targets: ArrayLike) -> NDArray:
        """Return the (N,) exact log-probabilities of the targets."""
        hidden_ND, targets_N = self._check(hidden, targets)
        return self._target_log_probs(hidden_ND, targets_N)

    def topk(self, hidden: ArrayLike, k: int) -> tuple[NDArray, NDArray]:
        """Return values and ids (N, K) of the k most likely words: exact, best first, ties by lower id."""
        hidden_ND = check_hidden(hidden, self.spec)
        return self._topk(hidden_ND, check_count("k", k, self.spec.vocab))

    def beam(self, hidden: ArrayLike, k: int, width: int, levels: int = 1) -> tuple[NDArray, NDArray]:
        """Return values and ids (N, K) of k likely words by level-wise search, which is not exact.

        The search follows only the `width` most likely clusters of a two-level layer, or prefixes at each level of a
        tree (Liu et al. 2022, section 3.3). A layer with one level returns its exact top-k.

        Args:
            hidden: (N, D).
            k: Number of words.
            width: Width of the search, from k to V.
            levels: Number of levels of a binary tree that are searched at a time; the prefixes in between are not
                selected. Other layers select at each level.
        """
        hidden_ND = check_hidden(hidden, self.spec)
        k = check_count("k", k, self.spec.vocab)
        width = check_count("width", width, self.spec.vocab, lowest=k)
        if check_levels(levels) == 1:
            return self._beam(hidden_ND, k, width)
        return self._path_beam(hidden_ND, k, width, levels)

    def sample(
        self,
        hidden: ArrayLike,
        uniforms: ArrayLike,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> NDArray[np.int64]:
        """Draw (N,) words exactly from the distribution, level by level from the root down.

        Args:
            hidden: (N, D).
            uniforms: (N, U) numbers in [0, 1), one for each choice, with U = `spec.draws`. A choice among several words
                or clusters takes the first, in the order of ids, whose cumulative probability exceeds the number. A
                turn in a binary tree goes left if the number is below the probability. With one of the options below,
                only the first number counts: it takes the first word whose cumulative probability exceeds it, in the
                order of ids, or best first with `top_k` or `top_p`.
            temperature, top_k, top_p: As defined by `calls.Sampling`.
        """
        hidden_ND = check_hidden(hidden, self.spec)
        sampling = check_sampling(temperature, top_k, top_p, self.spec.vocab)
        return self._sample(hidden_ND, check_uniforms(uniforms, (len(hidden_ND), self.spec.draws)), sampling)

    def expanded_share(self, hidden: ArrayLike, k: int) -> NDArray:
        """Return the (N,) share of clusters or nodes that `topk` scores; 1 for a layer without bounds."""
        hidden_ND = check_hidden(hidden, self.spec)
        return self._expanded_share(hidden_ND, check_count("k", k, self.spec.vocab))

    def least_work(self, targets: ArrayLike, **extra: ArrayLike) -> LeastWork | None:
        """Return the least work of the loss of these targets (N,) and its gradients, by the formula of the method.

        None if the definition has no formula.
        """
        formula = self.spec.definition.least_work
        if formula is None:
            return None
        targets_N = check_ids("targets", targets, self.spec.vocab)
        return formula(self.spec, targets_N, **self._check_extra(extra, len(targets_N)))

    def prepare(
        self,
        work: str,
        hidden: ArrayLike,
        targets: ArrayLike | None = None,
        *,
        k: int | None = None,
        width: int | None = None,
        uniforms: ArrayLike | None = None,
        optimizer: Optimizer | None = None,
        calls: int = 1,
        **extra: ArrayLike,
    ) -> Callable[[], object]:
        """Place the inputs on the device and return a function that does `work` and waits until it is done.

        Args:
            work: "layer" (forward and backward), "layer_step" (and the optimizer), "score" (the log-probabilities of
                the targets), "entropy", "topk", "beam", "sample", "nucleus_sample" (of the likeliest words with a total
                probability of at least 0.9) or "log_probs".
            hidden: (N, D).
            targets: (N,), required by the first three.
            k: Number of words for "topk" and "beam". Default: 10, or V if that is smaller.
            width: Width of the search for "beam". Default: k.
            uniforms: (N, U) for "sample" and "nucleus_sample". Default: drawn with seed 0.
            optimizer: Optimizer for "layer_step". Default: Adagrad as in the SOHSM paper.
            calls: How many times in a row the function does the work before it waits, as a training loop does.
            **extra: As for `loss`; the same for every call of the returned function.
        """
        if work not in WORK:
            raise unknown("work", work, WORK)
        hidden_ND = check_hidden(hidden, self.spec)
        if targets is None:
            if work in _OF_TARGETS:
                raise BadInput(f"targets is missing: allowed: ({len(hidden_ND)},) word ids for work={work!r}")
            targets = np.zeros(len(hidden_ND), dtype=np.int64)
        if not isinstance(optimizer, Optimizer | None):
            raise BadInput(f"optimizer={optimizer!r}: allowed: an Optimizer, or None for Adagrad as in the SOHSM paper")
        if isinstance(calls, bool) or not isinstance(calls, int | np.integer) or calls < 1:
            raise BadInput(f"calls={calls!r}: allowed: a whole number from 1 on")
        k = min(10, self.spec.vocab) if k is None else check_count("k", k, self.spec.vocab)
        size = (len(hidden_ND), self.spec.draws)
        job = Job(
            work=work,
            hidden_ND=hidden_ND,
            targets_N=check_targets(targets, self.spec.vocab, (len(hidden_ND),)),
            k=k,
            width=k if width is None else check_count("width", width, self.spec.vocab, lowest=k),
            uniforms_NU=check_uniforms(np.random.default_rng(0).random(size) if uniforms is None else uniforms, size),
            optimizer=optimizer or Optimizer(),
            extra=self._check_extra(extra, len(hidden_ND)),
        )
        begin = self._prepare(job)

        def run() -> None:
            made: object = None
            for _ in range(calls):
                made = begin()
            self._wait(made)

        return run

    def _check(self, hidden: ArrayLike, targets: ArrayLike) -> tuple[NDArray, NDArray[np.int64]]:
        hidden_ND = check_hidden(hidden, self.spec)
        targets_N = check_targets(targets, self.spec.vocab, (len(hidden_ND),))
        return hidden_ND, targets_N

    def _check_loss(
        self,
        hidden: ArrayLike,
        targets: ArrayLike,
        label_smoothing: float,
        token_weight: ArrayLike | None,
        z_loss: float,
        softcap: float | None,
    ) -> tuple[NDArray, NDArray[np.int64], Objective, NDArray[np.float64] | None]:
        hidden_ND, targets_N = self._check(hidden, targets)
        objective = objective_of(self.spec.definition, label_smoothing, z_loss, softcap)
        weight_N = None if token_weight is None else check_token_weight(token_weight, targets_N.shape)
        return hidden_ND, targets_N, objective, weight_N

    def _check_extra(self, extra: Mapping[str, ArrayLike], tokens: int, keywords: Sequence[str] = ()) -> Arrays:
        """Return all random inputs of the loss: the given ones, and the others drawn from the seed of the layer.

        Args:
            extra: The given ones.
            tokens: Number of tokens.
            keywords: What the call takes besides, for the message about an unknown name.
        """
        allowed = self.spec.definition.extra
        for name in extra:
            if name not in allowed:
                raise unknown(f"input of {self.spec.method}", name, (*allowed, *keywords))
        given = {name: check_extra(name, value, self.spec, tokens) for name, value in extra.items()}
        return self.spec.draw_extra(np.random.default_rng([self.spec.seed, 6]), tokens=tokens) | given


def check_hidden(hidden: ArrayLike, spec: LayerSpec) -> NDArray:
    """Return `hidden` as a finite, contiguous (N, D) array of float64, or float32 for layers in at most float32."""
    array = array_of("hidden", hidden)
    if array.ndim != 2 or array.shape[1] != spec.dim or len(array) < 1:
        raise BadInput(f"hidden has shape {array.shape}: allowed: (N, {spec.dim}) with N from 1")
    if not is_floating(array):
        raise BadInput(f"hidden has dtype {array.dtype}: allowed: floating point")
    with np.errstate(over="ignore"):  # overflow becomes infinity, which is refused below
        kept_ND = np.ascontiguousarray(array, dtype=np.float64 if spec.storage == "float64" else np.float32)
    finite = np.isfinite(kept_ND)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        given = array[row, column]
        where = f" in {kept_ND.dtype}" if np.isfinite(given) else ""
        raise BadInput(f"hidden[{row}, {column}]={given} is not finite{where}: allowed: finite numbers")
    return kept_ND


def check_targets(targets: ArrayLike, vocab: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return `targets` as int64, after checking their shape and that they are in the vocabulary."""
    array = array_of("targets", targets)
    if array.shape != shape:
        raise BadInput(f"targets has shape {array.shape}: allowed: {shape}")
    return check_words("targets", array, vocab)


def check_token_weight(token_weight: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return `token_weight` as float64, after checking its shape and that the weights are finite and not negative."""
    array = array_of("token_weight", token_weight)
    if array.shape != shape or array.dtype.kind not in "iuf":
        raise BadInput(f"token_weight has shape {array.shape} and dtype {array.dtype}: allowed: {shape} numbers")
    if not (np.isfinite(array) & (array >= 0)).all():
        raise BadInput("token_weight holds a number outside its range: allowed: finite numbers from 0")
    return array.astype(np.float64)


def check_extra(name: str, values: ArrayLike, spec: LayerSpec, tokens: int) -> NDArray:
    """Return a random input of a loss of `tokens` tokens, after checking its shape and values."""
    extra = spec.definition.extra[name]
    if extra.for_each_word:
        return check_for_each_word(name, values, spec.vocab)
    if not extra.for_each_token(spec.options):
        return check_ids(name, values, spec.vocab)
    array = array_of(name, values)
    if array.ndim != 2 or len(array) != tokens or not array.size:
        raise BadInput(f"{name} has shape {array.shape}: allowed: ({tokens}, S), from one word id for each token on")
    return check_words(name, array, spec.vocab)


def check_for_each_word(name: str, values: ArrayLike, vocab: int) -> NDArray[np.float64]:
    """Return `values` as finite (V,) float64."""
    array = array_of(name, values)
    if array.shape != (vocab,) or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        what = f"shape {array.shape} and dtype {array.dtype}"
        raise BadInput(f"{name} has {what}: allowed: {vocab} finite numbers, one for each word")
    return array.astype(np.float64)


def check_uniforms(uniforms: ArrayLike, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return `uniforms` as float64 of the given shape, below 1 in float32 too, in which 1 - 1e-9 rounds to 1."""
    array = array_of("uniforms", uniforms)
    if array.shape != shape or array.dtype.kind != "f":
        raise BadInput(f"uniforms has shape {array.shape} and dtype {array.dtype}: allowed: {shape} floating point")
    if not ((array >= 0) & (array < 1)).all():
        raise BadInput("uniforms holds a number outside its range: allowed: from 0, below 1")
    return np.minimum(array.astype(np.float64), float(np.nextafter(np.float32(1), np.float32(0))))
