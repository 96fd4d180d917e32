"""Base class and numerically stable functions shared by the float64 definitions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.contract import Job, Layer
from vocabench.impls.spec import Arrays


def log_softmax(scores: NDArray) -> NDArray:
    """Compute the log softmax along the last axis, shifted by the maximum so that no exponential overflows."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def mean_nll(log_probs_NV: NDArray, targets_N: NDArray) -> tuple[float, NDArray]:
    """Return the mean of -log P(target) and its gradient with respect to the scores, (P - one_hot) / N."""
    rows = np.arange(len(targets_N))
    dscores_NV = np.exp(log_probs_NV)
    dscores_NV[rows, targets_N] -= 1
    return -float(log_probs_NV[rows, targets_N].mean()), dscores_NV / len(targets_N)


def sigmoid(scores: NDArray) -> NDArray:
    """Compute 1 / (1 + exp(-x)) without overflow for any x."""
    return 0.5 * (1 + np.tanh(0.5 * scores))


def log_sigmoid(scores: NDArray) -> NDArray:
    """Compute log(1 / (1 + exp(-x))), accurately in both tails."""
    return np.minimum(scores, 0) - np.log1p(np.exp(-np.abs(scores)))


def draw(probabilities_NV: NDArray, uniforms_N: NDArray) -> NDArray[np.int64]:
    """Draw a column (N,) for each row by inverting the cumulative distribution.

    The result is the first column whose cumulative probability exceeds the row's sum times its uniform number.
    """
    cumulative_NV = probabilities_NV.cumsum(axis=1)
    return (cumulative_NV > uniforms_N[:, None] * cumulative_NV[:, -1:]).argmax(axis=1)


def best(scores_NV: NDArray, k: int) -> tuple[NDArray, NDArray]:
    """Return the values and columns (N, K) of the k highest scores, or of all if there are fewer.

    Ties are broken in favour of the lower column.
    """
    k = min(k, scores_NV.shape[1])
    ids_NK = np.empty((len(scores_NV), k), np.int64)
    for ids_K, scores_V in zip(ids_NK, scores_NV, strict=True):
        kth = np.partition(scores_V, -k)[-k] if k else np.inf
        reaching_X = np.flatnonzero(~(scores_V < kth))  # sorting only these is faster; NaN is included
        ids_K[:] = reaching_X[np.argsort(-scores_V[reaching_X], kind="stable")[:k]]
    return np.take_along_axis(scores_NV, ids_NK, axis=1), ids_NK


class OracleLayer(Layer):
    """Layer in float64.

    The module of a method defines `_loss_and_grads` and `_log_probs`. It also defines `_target_log_probs` if the
    probability of a target does not need the whole distribution, and `_beam` and `_sample` if there are several levels.
    """

    @cached_property
    def params(self) -> Arrays:
        """The current parameters, which are the initial ones until others are loaded."""
        drawn = self.spec.initial_parameters()
        return {name: value.astype(np.float64, copy=False) for name, value in drawn.items()}

    def parameters(self) -> Arrays:
        return {name: value.copy() for name, value in self.params.items()}

    def _load(self, params: Arrays) -> None:
        self.params = {name: value.astype(np.float64) for name, value in params.items()}

    def share(self, params: Arrays) -> None:
        """Share the arrays `output.<name>` of a model, which its optimizer updates in place."""
        output = {name: value for name, value in params.items() if name.startswith("output.")}
        self.params = {name.removeprefix("output."): value for name, value in output.items()}

    @abstractmethod
    def _loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        """Return the loss of the definition, with gradients written by hand.

        The gradients are those with respect to the hidden vectors (N, D) and to each parameter, by name.
        """

    def _target_log_probs(self, hidden_ND: NDArray, targets_N: NDArray) -> NDArray:
        return self._log_probs(hidden_ND)[np.arange(len(targets_N)), targets_N]

    def _loss(self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray) -> float:
        return self._loss_and_grads(hidden_ND, targets_N, **extra)[0]

    def _topk(self, hidden_ND: NDArray, k: int) -> tuple[NDArray, NDArray]:
        return best(self._log_probs(hidden_ND), k)

    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        return self._topk(hidden_ND, k)

    def _sample(self, hidden_ND: NDArray, uniforms_NU: NDArray) -> NDArray:
        return draw(np.exp(self._log_probs(hidden_ND)), uniforms_NU[:, 0])

    def _prepare(self, job: Job) -> Callable[[], object]:
        from vocabench.impls.on_numpy.optimizers import Updates

        hidden_ND = job.hidden_ND.astype(np.float64)
        calls: dict[str, Callable[[], object]] = {
            "layer": lambda: self._loss_and_grads(hidden_ND, job.targets_N, **job.extra),
            "topk": lambda: self._topk(hidden_ND, job.k),
            "beam": lambda: self._beam(hidden_ND, job.k, job.width),
            "sample": lambda: self._sample(hidden_ND, job.uniforms_NU),
            "log_probs": lambda: self._log_probs(hidden_ND),
        }
        if job.work != "layer_step":
            return calls[job.work]
        updates = Updates(job.optimizer, self.params)
        return lambda: updates.apply(self.params, self._loss_and_grads(hidden_ND, job.targets_N, **job.extra)[2])
