"""The bag model in float64 with a hand-written gradient, which defines the frameworks' models."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.models.bag_model import BagModel, BagModelConfig
from vocabench.impls.models.decisions import Decisions, Squares, parameter_of
from vocabench.impls.on_numpy.models._network import InFloat64
from vocabench.impls.on_numpy.optimizers import Updates
from vocabench.impls.on_numpy.oracle import log_sigmoid


class NumpyBagModel(InFloat64[BagModelConfig], BagModel):
    """Bag model in float64."""

    def _begin(self) -> None:
        self.trained = {"input": self.params["input"]} if self.config.frozen_output else self.params
        self.updates = Updates(self.config.optimizer, self.trained)

    def _hidden(self, bags_NJ: NDArray) -> tuple[NDArray, NDArray]:
        """Return the mean vectors (N, D), and the weight (N, J) of each position in them."""
        weight_NJ = (bags_NJ >= 0) / (bags_NJ >= 0).sum(axis=1, keepdims=True)
        return np.einsum("nj,njd->nd", weight_NJ, self.params["input"][np.maximum(bags_NJ, 0)]), weight_NJ

    def step(self, bags_NJ: NDArray, targets_N: NDArray) -> float:
        hidden_ND, weight_NJ = self._hidden(bags_NJ)
        extra = self.next_extra(len(targets_N))
        loss, dhidden_ND, output = self.layer._plain_loss_and_grads(hidden_ND, targets_N, **extra)
        dinput = np.zeros_like(self.params["input"])
        np.add.at(dinput, np.maximum(bags_NJ, 0), weight_NJ[:, :, None] * dhidden_ND[:, None, :])
        self.updates.apply(self.trained, {"input": dinput, **{f"output.{n}": grad for n, grad in output.items()}})
        return loss

    def _step_by_example(
        self,
        bags_NJ: NDArray[np.int32],
        decisions: Decisions,
        rates: tuple[float, float],
        squares: Squares,
        threads: int,
    ) -> float:
        input_ID, output_RD = self.params["input"], self.params[f"output.{parameter_of(self.spec)}"]
        rate_N = np.linspace(*rates, len(bags_NJ), endpoint=False)
        total = 0.0
        for bag_J, number, rate in zip(bags_NJ, decisions.list_N, rate_N, strict=True):
            inputs = bag_J[bag_J >= 0]
            there = decisions.sign_ML[number] != 0
            rows, sign_L = decisions.row_ML[number][there], decisions.sign_ML[number][there].astype(np.float64)
            hidden_D = input_ID[inputs].mean(axis=0)
            log_right_L = log_sigmoid(sign_L * (output_RD[rows] @ hidden_D))
            total -= log_right_L.sum()
            dscore_L = sign_L * np.expm1(log_right_L)  # the derivative of -log sigma(s x) is s (sigma(s x) - 1)
            dhidden_D = dscore_L @ output_RD[rows]
            _descend(output_RD, rows, dscore_L[:, None] * hidden_D, rate, squares.output_R)
            dinput_JD = np.tile(dhidden_D / len(inputs), (len(inputs), 1))
            _descend(input_ID, inputs, dinput_JD, rate, squares.input_I)
        return total / len(bags_NJ)

    def evaluate(self, bags_NJ: NDArray, targets_N: NDArray) -> float:
        return -float(self.layer._target_log_probs(self._hidden(bags_NJ)[0], targets_N).sum())


def _descend(vectors: NDArray, ids: NDArray, gradients: NDArray, rate: float, squares: NDArray) -> None:
    """Take a step for each of some vectors, one after the other, since a list may repeat one."""
    for number, gradient_D in zip(ids, gradients, strict=True):
        if squares.size:
            squares[number] += np.mean(gradient_D**2)
        vectors[number] -= rate * gradient_D / (np.sqrt(squares[number]) if squares.size else 1.0)


NETWORK = NumpyBagModel
