"""The bag model in PyTorch. See `impls/on_numpy/models/bag_model.py` for the definition."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls.models.bag_model import BagModel, BagModelConfig
from vocabench.impls.models.decisions import Decisions, Squares, parameter_of
from vocabench.impls.on_torch.device import Switched, extra_on, ids_on
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.models import _network
from vocabench.impls.on_torch.native import blank
from vocabench.impls.on_torch.ops import cpp_kernels
from vocabench.impls.on_torch.tensors import TORCH_DTYPES
from vocabench.impls.on_torch.training import optimizers
from vocabench.impls.spec import Arrays, LayerSpec


class Network(_network.Network):
    """Input vectors below any output layer."""

    NAMES: ClassVar = {"input": "input"}

    def __init__(self, inputs: int, output: OutputLayer, dtype: torch.dtype) -> None:
        super().__init__()
        self.input = nn.Parameter(torch.empty(inputs, output.spec.dim, dtype=dtype))
        self.output = output

    def forward(self, bags_NJ: Tensor) -> Tensor:
        """Return the (N, D) mean vector of each bag."""
        real_NJ = bags_NJ >= 0
        ends_N = real_NJ.sum(dim=1).cumsum(dim=0)
        begins_N = F.pad(ends_N[:-1], (1, 0))
        return F.embedding_bag(bags_NJ[real_NJ], self.input, begins_N, mode="mean")


class TorchBagModel(Switched, BagModel):
    def __init__(self, spec: LayerSpec, config: BagModelConfig, device: torch.device) -> None:
        super().__init__(spec, config)
        self.device = device
        self.network = Network(config.inputs, blank(spec), TORCH_DTYPES[spec.dtype]).to(device)
        self._load(self.initial_parameters())

    def parameters(self) -> Arrays:
        return self.network.read()

    def _load(self, params: Arrays) -> None:
        self.network.write(params)
        frozen = self.config.frozen_output
        self.trained = [self.network.input] if frozen else list(self.network.trained().values())
        self.optimizer = optimizers.build(self.config.optimizer, self.trained)

    def _ids(self, ids: NDArray) -> Tensor:
        return ids_on(self.device, ids)

    def step(self, bags_NJ: NDArray, targets_N: NDArray) -> Tensor:
        extra = extra_on(self.device, self.next_extra(len(targets_N)))
        loss = self.network.output(self.network(self._ids(bags_NJ)), self._ids(targets_N), **extra)
        optimizers.descend(loss, self.config.optimizer, self.optimizer, self.trained)
        return loss.detach()

    @torch.no_grad()
    def _step_by_example(
        self,
        bags_NJ: NDArray[np.int32],
        decisions: Decisions,
        rates: tuple[float, float],
        squares: Squares,
        threads: int,
    ) -> Tensor:
        output = self.network.output.get_parameter(parameter_of(self.spec))
        return cpp_kernels.word_steps(self.network.input, output, bags_NJ, decisions, rates, squares, threads)

    @torch.no_grad()
    def evaluate(self, bags_NJ: NDArray, targets_N: NDArray) -> float:
        log_probs_N = self.network.output.target_log_probs(self.network(self._ids(bags_NJ)), self._ids(targets_N))
        return -float(log_probs_N.double().sum())


NETWORK = TorchBagModel
