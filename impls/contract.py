"""The stable contract: what a layer and a model of any framework do, NumPy arrays in and out.

The public methods check their input once, here; a framework fills in the underscored ones. Shape letters are those of
`impls/spec.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.impls.arrays import array_of, is_floating
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.precision import Precise
from vocabench.impls.spec import Arrays, LayerSpec, LeastWork, check_ids, check_words

WORK = ("layer", "layer_step", "topk", "beam", "sample", "log_probs")


@dataclass(frozen=True)
class Job:
    """What a prepared function does, all of it checked.

    Attributes:
        work: One of `WORK`.
        hidden_ND, targets_N: Its inputs.
        k: For "topk" and "beam".
        width: For "beam".
        uniforms_NU: For "sample".
        optimizer: For "layer_step".
        extra: The loss's random inputs, for "layer" and "layer_step".
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
    """An output layer: a hidden vector (D,) to a distribution over V words."""

    def __init__(self, spec: LayerSpec) -> None:
        self.spec = spec

    # What a framework provides. `hidden` is finite (N, D), `targets` are (N,) int64 inside the vocabulary, and `extra`
    # holds names of `Definition.extra`: word ids as int64, numbers for each word as float64.
    @abstractmethod
    def parameters(self) -> Arrays:
        """Canonical names to arrays, words in vocabulary order."""

    @abstractmethod
    def _load(self, params: Arrays) -> None: ...

    @abstractmethod
    def _loss(self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray) -> float: ...

    @abstractmethod
    def _loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]: ...

    @abstractmethod
    def _log_probs(self, hidden_ND: NDArray) -> NDArray: ...

    @abstractmethod
    def _target_log_probs(self, hidden_ND: NDArray, targets_N: NDArray) -> NDArray: ...

    @abstractmethod
    def _topk(self, hidden_ND: NDArray, k: int) -> tuple[NDArray, NDArray]: ...

    @abstractmethod
    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]: ...

    @abstractmethod
    def _sample(self, hidden_ND: NDArray, uniforms_NU: NDArray) -> NDArray: ...

    @abstractmethod
    def _prepare(self, job: Job) -> Callable[[], object]:
        """What has the device begin the work once, and returns what it makes."""

    def _wait(self, made: object) -> None:
        """Until the device has made that: nothing to do where a call returns no sooner."""

    def structure(self) -> Arrays:
        """The arrays that shape the layer, such as the cluster of each word; empty for full softmax."""
        return dict(self.spec.structure)

    def _expanded_share(self, hidden_ND: NDArray, k: int) -> NDArray:
        return np.ones(len(hidden_ND))

    def reaches_few_rows(self) -> bool:
        """Whether a batch reaches few rows of a parameter, so that `Optimizer.row_sparse` saves work here."""
        return False

    def formulation(self) -> str:
        """Which of the method's fast forms runs, where there are several; goes into the row."""
        return ""

    # What callers use.
    def load(self, params: Mapping[str, ArrayLike]) -> None:
        """Take parameters in canonical form; raises `BadInput` on a missing, extra, misshapen or non-finite one."""
        self._load(self.spec.check_parameters(params))

    def loss(self, hidden: ArrayLike, targets: ArrayLike, **extra: ArrayLike) -> float:
        """Mean training loss in nats per token.

        Args:
            hidden: (N, D).
            targets: (N,).
            **extra: The loss's random inputs, as `Definition.extra` names them: `sampled_ids` (S,), the words that a
                batch of a sampled loss is held against, and `correction` (V,), what is taken off each word's score
                where the batch's words are drawn otherwise than the layer's options say. Where left out, ids are drawn
                from the layer's seed, the same in every framework, and the correction is the layer's own.
        """
        hidden_ND, targets_N = self._check(hidden, targets)
        return self._loss(hidden_ND, targets_N, **self._check_extra(extra))

    def loss_and_grads(
        self, hidden: ArrayLike, targets: ArrayLike, **extra: ArrayLike
    ) -> tuple[float, NDArray, Arrays]:
        """The loss, its gradient by hidden (N, D), and by each parameter in canonical form."""
        hidden_ND, targets_N = self._check(hidden, targets)
        return self._loss_and_grads(hidden_ND, targets_N, **self._check_extra(extra))

    def log_probs(self, hidden: ArrayLike) -> NDArray:
        """(N, V) natural logarithms of normalised probabilities."""
        return self._log_probs(check_hidden(hidden, self.spec))

    def target_log_probs(self, hidden: ArrayLike, targets: ArrayLike) -> NDArray:
        """(N,) exact log-probabilities of the targets."""
        hidden_ND, targets_N = self._check(hidden, targets)
        return self._target_log_probs(hidden_ND, targets_N)

    def topk(self, hidden: ArrayLike, k: int) -> tuple[NDArray, NDArray]:
        """Values (N, K) and ids (N, K) of the k likeliest words: exact, best first, ties by lower id."""
        hidden_ND = check_hidden(hidden, self.spec)
        return self._topk(hidden_ND, check_k(k, self.spec.vocab))

    def beam(self, hidden: ArrayLike, k: int, width: int) -> tuple[NDArray, NDArray]:
        """Values and ids (N, K) of k likely words by layer-wise search, which is not exact.

        Of the clusters of a two-level layer, or of the prefixes at each level of a tree, only the `width` likeliest
        are followed (Liu et al. 2022, section 3.3). A layer of one level gives its exact top-k.

        Args:
            hidden: (N, D).
            k: Words asked for.
            width: From k to V.
        """
        hidden_ND = check_hidden(hidden, self.spec)
        k = check_k(k, self.spec.vocab)
        return self._beam(hidden_ND, k, check_width(width, k, self.spec.vocab))

    def sample(self, hidden: ArrayLike, uniforms: ArrayLike) -> NDArray[np.int64]:
        """(N,) words drawn from the layer's distribution, exactly: from the root down, each choice given those before.

        Args:
            hidden: (N, D).
            uniforms: (N, U) numbers from 0, below 1, one for each choice, with U = `spec.draws`. A choice among
                several is the first whose cumulative probability exceeds its number, words and clusters in order of
                their ids; a turn in a binary tree goes left where its number lies below the probability.
        """
        hidden_ND = check_hidden(hidden, self.spec)
        return self._sample(hidden_ND, check_uniforms(uniforms, (len(hidden_ND), self.spec.draws)))

    def expanded_share(self, hidden: ArrayLike, k: int) -> NDArray:
        """(N,) the share of its clusters or nodes that the layer scores for `topk`; 1 where it has no bounds."""
        hidden_ND = check_hidden(hidden, self.spec)
        return self._expanded_share(hidden_ND, check_k(k, self.spec.vocab))

    def least_work(self, targets: ArrayLike, **extra: ArrayLike) -> LeastWork | None:
        """What the loss of these targets (N,) and its gradients take at least, by the formula of the method's
        definition; None where it has none."""
        formula = self.spec.definition.least_work
        if formula is None:
            return None
        return formula(self.spec, check_ids("targets", targets, self.spec.vocab), **self._check_extra(extra))

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
            work: "layer" (forward and backward), "layer_step" (and the optimizer), "topk", "beam", "sample" or
                "log_probs".
            hidden: (N, D).
            targets: (N,) for the first two; the others need none.
            k: For "topk" and "beam"; 10, or V where that is less, where left out.
            width: For "beam"; k where left out.
            uniforms: (N, U) for "sample"; drawn with seed 0 where left out.
            optimizer: For "layer_step"; Adagrad as in the SOHSM paper where left out.
            calls: How many times in a row the function does it before it waits, as a training loop does.
            **extra: As for `loss`; the same at every call of what is returned.
        """
        if work not in WORK:
            raise unknown("work", work, WORK)
        hidden_ND = check_hidden(hidden, self.spec)
        if targets is None:
            if work in ("layer", "layer_step"):
                raise BadInput(f"targets is missing: allowed: ({len(hidden_ND)},) word ids for work={work!r}")
            targets = np.zeros(len(hidden_ND), dtype=np.int64)
        if not isinstance(optimizer, Optimizer | None):
            raise BadInput(f"optimizer={optimizer!r}: allowed: an Optimizer, or None for Adagrad as in the SOHSM paper")
        if isinstance(calls, bool) or not isinstance(calls, int | np.integer) or calls < 1:
            raise BadInput(f"calls={calls!r}: allowed: a whole number from 1 on")
        k = min(10, self.spec.vocab) if k is None else check_k(k, self.spec.vocab)
        size = (len(hidden_ND), self.spec.draws)
        job = Job(
            work=work,
            hidden_ND=hidden_ND,
            targets_N=check_targets(targets, self.spec.vocab, (len(hidden_ND),)),
            k=k,
            width=k if width is None else check_width(width, k, self.spec.vocab),
            uniforms_NU=check_uniforms(np.random.default_rng(0).random(size) if uniforms is None else uniforms, size),
            optimizer=optimizer or Optimizer(),
            extra=self._check_extra(extra),
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

    def _check_extra(self, extra: Mapping[str, ArrayLike]) -> Arrays:
        """All of the loss's random inputs: those given, and the others as the layer's seed draws them."""
        allowed = self.spec.definition.extra
        for name in extra:
            if name not in allowed:
                raise unknown(f"input of {self.spec.method}", name, allowed)
        given = {
            name: (check_for_each_word if allowed[name].for_each_word else check_ids)(name, value, self.spec.vocab)
            for name, value in extra.items()
        }
        return self.spec.draw_extra(np.random.default_rng([self.spec.seed, 6])) | given


def check_hidden(hidden: ArrayLike, spec: LayerSpec) -> NDArray:
    """`hidden` as a finite, contiguous (N, D) array of float64, or of float32 where the layer has no more digits."""
    array = array_of("hidden", hidden)
    if array.ndim != 2 or array.shape[1] != spec.dim or len(array) < 1:
        raise BadInput(f"hidden has shape {array.shape}: allowed: (N, {spec.dim}) with N from 1")
    if not is_floating(array):
        raise BadInput(f"hidden has dtype {array.dtype}: allowed: floating point")
    with np.errstate(over="ignore"):  # what is too large is refused as not finite
        kept_ND = np.ascontiguousarray(array, dtype=np.float64 if spec.storage == "float64" else np.float32)
    finite = np.isfinite(kept_ND)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        given = array[row, column]
        where = f" in {kept_ND.dtype}" if np.isfinite(given) else ""
        raise BadInput(f"hidden[{row}, {column}]={given} is not finite{where}: allowed: finite numbers")
    return kept_ND


def check_targets(targets: ArrayLike, vocab: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """`targets` as int64 of the given shape, inside the vocabulary."""
    array = array_of("targets", targets)
    if array.shape != shape:
        raise BadInput(f"targets has shape {array.shape}: allowed: {shape}")
    return check_words("targets", array, vocab)


def check_for_each_word(name: str, values: ArrayLike, vocab: int) -> NDArray[np.float64]:
    """`values` as finite (V,) float64."""
    array = array_of(name, values)
    if array.shape != (vocab,) or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        what = f"shape {array.shape} and dtype {array.dtype}"
        raise BadInput(f"{name} has {what}: allowed: {vocab} finite numbers, one for each word")
    return array.astype(np.float64)


def check_k(k: object, vocab: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= vocab:
        raise BadInput(f"k={k!r}: allowed: a whole number from 1 to {vocab}, the vocabulary")
    return int(k)


def check_width(width: object, k: int, vocab: int) -> int:
    if isinstance(width, bool) or not isinstance(width, int | np.integer) or not k <= width <= vocab:
        raise BadInput(f"width={width!r}: allowed: a whole number from k={k} to {vocab}, the vocabulary")
    return int(width)


def check_uniforms(uniforms: ArrayLike, shape: tuple[int, int]) -> NDArray[np.float64]:
    """`uniforms` as float64 of the given shape, each below 1 in float32 too, where 1 - 1e-9 would round to it."""
    array = array_of("uniforms", uniforms)
    if array.shape != shape or array.dtype.kind != "f":
        raise BadInput(f"uniforms has shape {array.shape} and dtype {array.dtype}: allowed: {shape} floating point")
    if not ((array >= 0) & (array < 1)).all():
        raise BadInput("uniforms holds a number outside its range: allowed: from 0, below 1")
    return np.minimum(array.astype(np.float64), float(np.nextafter(np.float32(1), np.float32(0))))
