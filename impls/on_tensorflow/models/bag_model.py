"""The bag model in TensorFlow. See `impls/on_numpy/models/bag_model.py` for the definition."""

from __future__ import annotations

import tensorflow as tf
from numpy.typing import NDArray

from impls.bag_model import BagModel, BagModelConfig
from impls.on_tensorflow import _optimizers, adapter
from impls.on_tensorflow._layer import Tensor, Tensors
from impls.on_tensorflow.models.language_model import output_of
from impls.spec import Arrays, LayerSpec


class TensorFlowBagModel(BagModel):
    def __init__(self, spec: LayerSpec, config: BagModelConfig, device: str) -> None:
        super().__init__(spec, config)
        self.device, self.dtype = device, tf.as_dtype(spec.dtype)
        with tf.device(device):
            self.output = adapter.native(spec)
            self.input = tf.Variable(tf.zeros([config.inputs, spec.dim], self.dtype))
        self._load(self.initial_parameters())

    def _variables(self) -> dict[str, tf.Variable]:
        output = {f"output.{name}": value for name, value in self.output.named_weights().items()}
        return {"input": self.input, **output}

    def parameters(self) -> Arrays:
        found = {name: tf.convert_to_tensor(value) for name, value in self._variables().items()}
        canonical = {f"output.{name}": value for name, value in self.output.to_canonical(output_of(found)).items()}
        return {name: adapter.to_numpy(value) for name, value in {"input": found["input"], **canonical}.items()}

    def _load(self, params: Arrays) -> None:
        with tf.device(self.device):
            tensors = {name: tf.cast(tf.constant(value), self.dtype) for name, value in params.items()}
            self.output.load_canonical(output_of(tensors))
            self.input.assign(tensors["input"])
            self.optimizer = _optimizers.Updates(self.config.optimizer, self._variables())
            # The step writes into the optimizer's variables, so a new optimizer needs a new trace.
            self._step = tf.function(self._step_of)
            self._evaluate = tf.function(self._evaluate_of)

    def _mean_vectors(self, bags_NJ: Tensor) -> Tensor:
        """(N, D)."""
        real_NJ1 = tf.cast(bags_NJ >= 0, self.dtype)[:, :, None]
        vectors_NJD = tf.gather(self.input, tf.maximum(bags_NJ, 0)) * real_NJ1
        return tf.reduce_sum(vectors_NJD, axis=1) / tf.reduce_sum(real_NJ1, axis=1)

    def _step_of(self, bags_NJ: Tensor, targets_N: Tensor, extra: Tensors) -> Tensor:
        variables = self._variables()
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in variables.values():
                tape.watch(variable)
            loss = self.output(self._mean_vectors(bags_NJ), targets_N, **extra)
        grads = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        self.optimizer.apply({name: tf.convert_to_tensor(grad) for name, grad in grads.items()})
        return loss

    def _evaluate_of(self, bags_NJ: Tensor, targets_N: Tensor) -> Tensor:
        return -tf.reduce_sum(self.output.target_log_probs(self._mean_vectors(bags_NJ), targets_N))

    def step(self, bags_NJ: NDArray, targets_N: NDArray) -> Tensor:
        with tf.device(self.device):
            extra = adapter.extra_on(self.device, next(self.extra_of_steps))
            return self._step(tf.constant(bags_NJ, tf.int32), tf.constant(targets_N, tf.int32), extra)

    def evaluate(self, bags_NJ: NDArray, targets_N: NDArray) -> float:
        with tf.device(self.device):
            return float(self._evaluate(tf.constant(bags_NJ, tf.int32), tf.constant(targets_N, tf.int32)))


MODEL = TensorFlowBagModel
