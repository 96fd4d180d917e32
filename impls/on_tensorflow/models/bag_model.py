"""The bag model in TensorFlow. See `impls/on_numpy/models/bag_model.py` for the definition."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from vocabench.impls.models.bag_model import BagModel, BagModelConfig
from vocabench.impls.models.decisions import Decisions, Squares, parameter_of
from vocabench.impls.on_tensorflow.device import Switched, extra_on
from vocabench.impls.on_tensorflow.models import _parameters
from vocabench.impls.on_tensorflow.native import native
from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, look_up, traced
from vocabench.impls.on_tensorflow.training import optimizers
from vocabench.impls.spec import Arrays, LayerSpec


class TensorFlowBagModel(Switched, BagModel):
    def __init__(self, spec: LayerSpec, config: BagModelConfig, device: str) -> None:
        super().__init__(spec, config)
        self.device, self.dtype = device, tf.as_dtype(spec.storage)
        with tf.device(device):
            self.output = native(spec)
            self.input = tf.Variable(tf.zeros([config.inputs, spec.dim], self.dtype))
        self._load(self.initial_parameters())

    def _variables(self) -> _parameters.Variables:
        return _parameters.with_output({"input": self.input}, self.output.named_weights())

    def parameters(self) -> Arrays:
        return _parameters.to_canonical(self._variables(), self.output)

    def _load(self, params: Arrays) -> None:
        with tf.device(self.device):
            _parameters.load_canonical(params, self._variables(), self.output)
            trained = {"input": self.input} if self.config.frozen_output else self._variables()
            self.optimizer = optimizers.Updates(self.config.optimizer, trained)
            # The step writes to the optimizer's variables, so a new optimizer needs a new trace.
            self._step = traced(self._step_of)
            self._evaluate = traced(self._evaluate_of)

    def _mean_vectors(self, bags_NJ: Tensor) -> Tensor:
        """Return the (N, D) means of the input vectors of each bag."""
        real_NJ1 = tf.cast(bags_NJ >= 0, self.dtype)[:, :, None]
        vectors_NJD = look_up(self.input, tf.maximum(bags_NJ, 0)) * real_NJ1
        return tf.reduce_sum(vectors_NJD, axis=1) / tf.reduce_sum(real_NJ1, axis=1)

    def _step_of(self, bags_NJ: Tensor, targets_N: Tensor, extra: Tensors) -> Tensor:
        return self.optimizer.minimize(lambda: self.output(self._mean_vectors(bags_NJ), targets_N, **extra))

    def _evaluate_of(self, bags_NJ: Tensor, targets_N: Tensor) -> Tensor:
        return -tf.reduce_sum(self.output.target_log_probs(self._mean_vectors(bags_NJ), targets_N))

    def step(self, bags_NJ: NDArray, targets_N: NDArray) -> Tensor:
        with tf.device(self.device):
            extra = extra_on(self.device, self.next_extra(len(targets_N)))
            return self._step(tf.constant(bags_NJ, tf.int32), tf.constant(targets_N, tf.int32), extra)

    def _step_by_example(
        self,
        bags_NJ: NDArray[np.int32],
        decisions: Decisions,
        rates: tuple[float, float],
        squares: Squares,
        threads: int,
    ) -> Tensor:
        output = self.output.named_weights()[parameter_of(self.spec)]
        with tf.device(self.device):
            vectors = self.input, output
            *new_vectors, loss = cpp_kernels.word_steps(*vectors, bags_NJ, decisions, rates, squares, threads)
            for variable, value in zip(vectors, new_vectors, strict=True):
                variable.assign(value)
        return loss

    def evaluate(self, bags_NJ: NDArray, targets_N: NDArray) -> float:
        with tf.device(self.device):
            return float(self._evaluate(tf.constant(bags_NJ, tf.int32), tf.constant(targets_N, tf.int32)))


NETWORK = TensorFlowBagModel
