"""What the float64 definitions share: the NumPy side of the contract, and numerically safe logarithms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from impls.contract import Layer
from impls.optimizers import Optimizer
from impls.spec import Arrays, Definition, LayerSpec


def log_softmax(scores: NDArray) -> NDArray:
    """Along the last axis, shifted by the maximum so that no exponential overflows."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def log_sigmoid(scores: NDArray) -> NDArray:
    """log(1 / (1 + exp(-x))), exact in both tails."""
    return np.minimum(scores, 0) - np.log1p(np.exp(-np.abs(scores)))


class OracleLayer(Layer):
    """A layer in float64. A method's file gives its formulas: `_loss_and_grads`, `_log_probs`, `_target_log_probs`."""

    DEFINITION: ClassVar[Definition]

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.params: Arrays = {name: value.astype(np.float64) for name, value in spec.initial_parameters().items()}

    def parameters(self) -> Arrays:
        return {name: value.copy() for name, value in self.params.items()}

    def _load(self, params: Arrays) -> None:
        self.params = {name: value.astype(np.float64) for name, value in params.items()}

    @abstractmethod
    def _loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        """The definition's loss with gradients written out by hand."""

    def _loss(self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray) -> float:
        return self._loss_and_grads(hidden_ND, targets_N, **extra)[0]

    def _topk(self, hidden_ND: NDArray, k: int) -> tuple[NDArray, NDArray]:
        log_probs_NV = self._log_probs(hidden_ND)
        ids_NK = np.argsort(-log_probs_NV, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(log_probs_NV, ids_NK, axis=1), ids_NK

    def _prepare(
        self, work: str, hidden_ND: NDArray, targets_N: NDArray, k: int, optimizer: Optimizer
    ) -> Callable[[], object]:
        from impls.on_numpy._optimizers import Updates

        hidden_ND = hidden_ND.astype(np.float64)
        if work == "topk":
            return lambda: self._topk(hidden_ND, k)
        if work == "log_probs":
            return lambda: self._log_probs(hidden_ND)
        if work == "layer":
            return lambda: self._loss_and_grads(hidden_ND, targets_N)
        updates = Updates(optimizer, self.params)
        return lambda: updates.apply(self.params, self._loss_and_grads(hidden_ND, targets_N)[2])
