"""The bag model in float64 with a hand-written gradient, which defines the frameworks' models."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.models.bag_model import BagModel, BagModelConfig
from vocabench.impls.on_numpy.models._network import InFloat64
from vocabench.impls.on_numpy.optimizers import Updates


class NumpyBagModel(InFloat64[BagModelConfig], BagModel):
    """Bag model in float64."""

    def _begin(self) -> None:
        self.updates = Updates(self.config.optimizer, self.params)

    def _hidden(self, bags_NJ: NDArray) -> tuple[NDArray, NDArray]:
        """Return the mean vectors (N, D), and the weight (N, J) of each position in them."""
        weight_NJ = (bags_NJ >= 0) / (bags_NJ >= 0).sum(axis=1, keepdims=True)
        return np.einsum("nj,njd->nd", weight_NJ, self.params["input"][np.maximum(bags_NJ, 0)]), weight_NJ

    def step(self, bags_NJ: NDArray, targets_N: NDArray) -> float:
        hidden_ND, weight_NJ = self._hidden(bags_NJ)
        loss, dhidden_ND, output = self.layer._plain_loss_and_grads(hidden_ND, targets_N, **self.next_extra())
        dinput = np.zeros_like(self.params["input"])
        np.add.at(dinput, np.maximum(bags_NJ, 0), weight_NJ[:, :, None] * dhidden_ND[:, None, :])
        self.updates.apply(self.params, {"input": dinput, **{f"output.{n}": grad for n, grad in output.items()}})
        return loss

    def evaluate(self, bags_NJ: NDArray, targets_N: NDArray) -> float:
        return -float(self.layer._target_log_probs(self._hidden(bags_NJ)[0], targets_N).sum())


NETWORK = NumpyBagModel
