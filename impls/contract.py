"""The stable contract: what a layer and a model of any framework do, NumPy arrays in and out.

The public methods check their input once, here; a framework fills in the underscored ones. Shape letters are those of
`impls/spec.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from impls.errors import BadInput, unknown
from impls.optimizers import Optimizer
from impls.spec import Arrays, LayerSpec, Shapes, check_parameters

WORK = ("layer", "layer_step", "topk", "log_probs")


class Layer(ABC):
    """An output layer: a hidden vector (D,) to a distribution over V words."""

    def __init__(self, spec: LayerSpec) -> None:
        self.spec = spec

    # What a framework provides. `hidden` is finite (N, D), `targets` are (N,) int64 inside the vocabulary.
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
    def _prepare(
        self, work: str, hidden_ND: NDArray, targets_N: NDArray, k: int, optimizer: Optimizer
    ) -> Callable[[], object]: ...

    def structure(self) -> Arrays:
        """The arrays that shape the layer, such as the cluster of each word; empty for full softmax."""
        return dict(self.spec.structure)

    def peak_device_bytes(self, run: Callable[[], object]) -> int | None:
        """Most device memory in use during `run` above what was in use before; None where the device has no counter."""
        return None

    def ballast(self, size: int) -> object | None:
        """An array of `size` bytes on the host, written to, where the framework keeps memory that it has freed; else
        None."""
        return None

    def _expanded_share(self, hidden_ND: NDArray, k: int) -> NDArray:
        return np.ones(len(hidden_ND))

    def formulation(self) -> str:
        """Which of the method's fast forms runs, where there are several; goes into the row."""
        return ""

    # What callers use.
    def load(self, params: Mapping[str, ArrayLike]) -> None:
        """Take parameters in canonical form; raises `BadInput` on a missing, extra, misshapen or non-finite one."""
        self._load(self.spec.check_parameters(params))

    def loss(self, hidden: ArrayLike, targets: ArrayLike, **extra: NDArray) -> float:
        """Mean training loss in nats per token."""
        hidden_ND, targets_N = self._check(hidden, targets)
        return self._loss(hidden_ND, targets_N, **extra)

    def loss_and_grads(self, hidden: ArrayLike, targets: ArrayLike, **extra: NDArray) -> tuple[float, NDArray, Arrays]:
        """The loss, its gradient by hidden (N, D), and by each parameter in canonical form."""
        hidden_ND, targets_N = self._check(hidden, targets)
        return self._loss_and_grads(hidden_ND, targets_N, **extra)

    def log_probs(self, hidden: ArrayLike) -> NDArray:
        """(N, V) natural logarithms of normalised probabilities."""
        return self._log_probs(check_hidden(hidden, self.spec.dim))

    def target_log_probs(self, hidden: ArrayLike, targets: ArrayLike) -> NDArray:
        """(N,) exact log-probabilities of the targets."""
        hidden_ND, targets_N = self._check(hidden, targets)
        return self._target_log_probs(hidden_ND, targets_N)

    def topk(self, hidden: ArrayLike, k: int) -> tuple[NDArray, NDArray]:
        """Values (N, K) and ids (N, K) of the k likeliest words: exact, best first, ties by lower id."""
        hidden_ND = check_hidden(hidden, self.spec.dim)
        return self._topk(hidden_ND, check_k(k, self.spec.vocab))

    def expanded_share(self, hidden: ArrayLike, k: int) -> NDArray:
        """(N,) the share of its clusters or nodes that the layer scores for `topk`; 1 where it has no bounds."""
        hidden_ND = check_hidden(hidden, self.spec.dim)
        return self._expanded_share(hidden_ND, check_k(k, self.spec.vocab))

    def prepare(
        self, work: str, hidden: ArrayLike, targets: ArrayLike, *, k: int = 10, optimizer: Optimizer | None = None
    ) -> Callable[[], object]:
        """Place the inputs on the device and return a function that does `work` once and waits until it is done.

        Args:
            work: "layer" (forward and backward), "layer_step" (and the optimizer), "topk" or "log_probs".
            hidden: (N, D).
            targets: (N,).
            k: For "topk".
            optimizer: For "layer_step"; Adagrad as in the SOHSM paper where left out.
        """
        if work not in WORK:
            raise unknown("work", work, WORK)
        hidden_ND, targets_N = self._check(hidden, targets)
        return self._prepare(work, hidden_ND, targets_N, check_k(k, self.spec.vocab), optimizer or Optimizer())

    def _check(self, hidden: ArrayLike, targets: ArrayLike) -> tuple[NDArray, NDArray[np.int64]]:
        hidden_ND = check_hidden(hidden, self.spec.dim)
        targets_N = check_targets(targets, self.spec.vocab, (len(hidden_ND),))
        return hidden_ND, targets_N


@dataclass(frozen=True)
class LanguageModelConfig:
    """The network of SOHSM section 4.2: one embedding, one LSTM layer, an output layer.

    Attributes:
        embedding: Width of a word's vector.
        hidden: Width of the LSTM, which is the output layer's `dim`.
        optimizer: Its settings.
        seed: Of the initial parameters and of re-organizations.
    """

    embedding: int = 512
    hidden: int = 512
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0

    def body_shapes(self, vocab: int) -> Shapes:
        """Canonical parameters below the output layer. LSTM gates stand in the order input, forget, cell, output;
        gates = input_weight x + hidden_weight h + bias, with a single bias."""
        gates = 4 * self.hidden
        return {
            "embedding": (vocab, self.embedding),
            "lstm_input_weight": (gates, self.embedding),
            "lstm_hidden_weight": (gates, self.hidden),
            "lstm_bias": (gates,),
        }

    def initial_body(self, vocab: int) -> Arrays:
        """Float64 parameters below the output layer, the same for every framework; uniform in +-1/sqrt(fan in),
        embeddings uniform in +-0.1, biases zero but for the forget gate's, which is 1."""
        rng = np.random.default_rng([self.seed, 2])
        bound = 1 / np.sqrt(self.hidden)
        shapes = self.body_shapes(vocab)
        body = {
            "embedding": rng.uniform(-0.1, 0.1, shapes["embedding"]),
            "lstm_input_weight": rng.uniform(-bound, bound, shapes["lstm_input_weight"]),
            "lstm_hidden_weight": rng.uniform(-bound, bound, shapes["lstm_hidden_weight"]),
            "lstm_bias": np.zeros(shapes["lstm_bias"]),
        }
        body["lstm_bias"][self.hidden : 2 * self.hidden] = 1.0
        return body


class LanguageModel(ABC):
    """An LSTM language model with any output layer, trained by truncated back-propagation with carried state.

    Parameters are named as in `LanguageModelConfig.body_shapes`, and `output.<name>` for those of the layer.
    """

    def __init__(self, spec: LayerSpec, config: LanguageModelConfig) -> None:
        if spec.dim != config.hidden:
            raise BadInput(f"the layer's dim={spec.dim} differs from the LSTM's hidden={config.hidden}: allowed: equal")
        self.spec = spec
        self.config = config

    def parameter_shapes(self) -> Shapes:
        output = {f"output.{name}": shape for name, shape in self.spec.parameter_shapes().items()}
        return {**self.config.body_shapes(self.spec.vocab), **output}

    def initial_parameters(self) -> Arrays:
        output = {f"output.{name}": value for name, value in self.spec.initial_parameters().items()}
        return {**self.config.initial_body(self.spec.vocab), **output}

    def load(self, params: Mapping[str, ArrayLike]) -> None:
        """Take parameters in canonical form; raises `BadInput` on a missing, extra or misshapen one."""
        self._load(check_parameters("the language model", self.parameter_shapes(), params))

    @abstractmethod
    def parameters(self) -> Arrays: ...

    @abstractmethod
    def _load(self, params: Arrays) -> None: ...

    @abstractmethod
    def step(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> SupportsFloat:
        """One optimizer step; the mean loss in nats per token before it.

        `float()` of what returns waits for the device; before that, work may be under way. With `carry`, the LSTM
        starts from the final state of the last step (no gradient through it), else from zeros.
        """

    @abstractmethod
    def evaluate(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> dict[str, float]:
        """Sums over the tokens, in nats: "nll", and for a two-level layer also "cluster_nll" (equation 5).

        `carry` refers to the last call of `evaluate`: training's carried state is not touched.
        """

    @abstractmethod
    def hidden(self, inputs_BT: NDArray) -> NDArray:
        """(B*T, D) hidden vectors from zero state, batch-major: what a trained layer meets when it decodes."""

    def reorganize(self) -> tuple[NDArray, NDArray] | None:
        """Give a self-organizing layer new clusters from its statistics, moving word vectors and optimizer state.

        Returns the cluster of each word (V,) before and after, or None for a layer that does not organize itself.
        """
        return None

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done all that was asked."""


def check_hidden(hidden: ArrayLike, dim: int) -> NDArray:
    """`hidden` as a finite (N, D) floating-point array."""
    array = np.asarray(hidden)
    if array.ndim != 2 or array.shape[1] != dim or len(array) < 1:
        raise BadInput(f"hidden has shape {array.shape}: allowed: (N, {dim}) with N from 1")
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise BadInput(f"hidden has dtype {array.dtype}: allowed: floating point")
    finite = np.isfinite(array.astype(np.float32) if array.dtype.name == "bfloat16" else array)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise BadInput(f"hidden[{row}, {column}]={array[row, column]} is not finite: allowed: finite numbers")
    return array


def check_targets(targets: ArrayLike, vocab: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """`targets` as int64 of the given shape, inside the vocabulary."""
    array = np.asarray(targets)
    if array.shape != shape:
        raise BadInput(f"targets has shape {array.shape}: allowed: {shape}")
    if array.dtype.kind not in "iu":
        raise BadInput(f"targets has dtype {array.dtype}: allowed: whole numbers")
    outside = np.flatnonzero((array < 0) | (array >= vocab))
    if len(outside):
        raise BadInput(f"targets[{outside[0]}]={array.flat[outside[0]]}: allowed: word ids from 0 to {vocab - 1}")
    return array.astype(np.int64)


def check_k(k: object, vocab: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= vocab:
        raise BadInput(f"k={k!r}: allowed: a whole number from 1 to {vocab}, the vocabulary")
    return int(k)
