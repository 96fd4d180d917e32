"""The bag model in JAX. See `impls/on_numpy/models/bag_model.py` for the definition."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from vocabench.impls.models.bag_model import BagModel, BagModelConfig
from vocabench.impls.models.decisions import Decisions, Squares, parameter_of
from vocabench.impls.on_jax.device import JAX_DTYPES, Device, extra_on, precision
from vocabench.impls.on_jax.models import _output
from vocabench.impls.on_jax.models._output import output_of
from vocabench.impls.on_jax.native import native
from vocabench.impls.on_jax.ops import cpp_kernels
from vocabench.impls.on_jax.ops.arrays import Array, Tree
from vocabench.impls.on_jax.training import optimizers
from vocabench.impls.spec import Arrays, LayerSpec


def mean_vectors(input_ID: Array, bags_NJ: Array) -> Array:
    """Return the mean vector (N, D) of each bag. Negative ids are padding."""
    real_NJ1 = (bags_NJ >= 0)[:, :, None]
    vectors_NJD = jnp.where(real_NJ1, input_ID[jnp.maximum(bags_NJ, 0)], 0)
    return vectors_NJD.sum(axis=1) / real_NJ1.sum(axis=1).astype(input_ID.dtype)


class JaxBagModel(BagModel):
    """The bag model with a compiled training step, whose parameters are updated in place."""

    def __init__(self, spec: LayerSpec, config: BagModelConfig, device: Device) -> None:
        super().__init__(spec, config)
        self.device, self.dtype = device, JAX_DTYPES[spec.dtype]
        self.output = native(spec, device)
        with precision(spec.dtype), jax.default_device(device):
            self.structure = self.output.structure()
        self._step = jax.jit(self._step_of, donate_argnums=(0, 1))
        self._evaluate = jax.jit(self._evaluate_of)
        self._load(self.initial_parameters())

    def _load(self, params: Arrays) -> None:
        with precision(self.spec.dtype), jax.default_device(self.device):
            self.params = _output.from_canonical(self.output, self.structure, params, self.dtype)
            self.optimizer = optimizers.init(self.config.optimizer, self._trained(self.params))

    def _trained(self, params: Tree) -> Tree:
        """Return the parameters that a step changes."""
        return {"input": params["input"]} if self.config.frozen_output else params

    def parameters(self) -> Arrays:
        with precision(self.spec.dtype):
            return _output.to_canonical(self.output, self.structure, self.params)

    def _step_of(
        self,
        params: Tree,
        optimizer: optimizers.State,
        structure: Tree,
        bags_NJ: Array,
        targets_N: Array,
        extra: dict[str, Any],
    ) -> tuple[Tree, optimizers.State, Array]:
        def loss_of(trained: Tree) -> Array:
            hidden_ND = mean_vectors(trained["input"], bags_NJ)
            return self.output.loss(output_of({**params, **trained}), structure, hidden_ND, targets_N, **extra)

        trained = self._trained(params)
        loss, grads = jax.value_and_grad(loss_of)(trained)
        trained, optimizer = optimizers.update(self.config.optimizer, trained, grads, optimizer)
        return {**params, **trained}, optimizer, loss

    def _evaluate_of(self, params: Tree, structure: Tree, bags_NJ: Array, targets_N: Array) -> Array:
        hidden_ND = mean_vectors(params["input"], bags_NJ)
        return -self.output.target_log_probs(output_of(params), structure, hidden_ND, targets_N).sum()

    def step(self, bags_NJ: NDArray, targets_N: NDArray) -> Array:
        with precision(self.spec.dtype), jax.default_device(self.device):
            ids = bags_NJ.astype(np.int32), targets_N.astype(np.int32)
            extra = extra_on(self.device, self.next_extra(len(targets_N)))
            self.params, self.optimizer, loss = self._step(self.params, self.optimizer, self.structure, *ids, extra)
            return loss

    def _step_by_example(
        self,
        bags_NJ: NDArray[np.int32],
        decisions: Decisions,
        rates: tuple[float, float],
        squares: Squares,
        threads: int,
    ) -> Array:
        name = f"output.{parameter_of(self.spec)}"
        with precision(self.spec.dtype), jax.default_device(self.device):
            vectors = self.params["input"], self.params[name]
            *vectors, loss = cpp_kernels.word_steps(*vectors, bags_NJ, decisions, rates, squares, threads)
            self.params = {**self.params, **dict(zip(("input", name), vectors, strict=True))}
            return loss

    def evaluate(self, bags_NJ: NDArray, targets_N: NDArray) -> float:
        with precision(self.spec.dtype), jax.default_device(self.device):
            ids = bags_NJ.astype(np.int32), targets_N.astype(np.int32)
            return float(self._evaluate(self.params, self.structure, *ids))


NETWORK = JaxBagModel
